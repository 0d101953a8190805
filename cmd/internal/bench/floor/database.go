package floor

import (
	"context"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// session writes rows. It serves one goroutine at a time.
type session interface {
	// write claims rows, or completes them, and returns how many it found.
	write(rows []row) (int, error)
	// bind lets the end of a context cut short what the session does. Watching over
	// each statement costs more. The returned function ends that.
	bind(ctx context.Context) (unbind func())
	close()
}

// claimer is the session that claims.
type claimer interface {
	session
	// claimedOf returns the ids among those of some rows that are claimed. Nobody
	// but the floor claims any.
	claimedOf(rows []row) (map[string]bool, error)
}

// stream reads the log.
type stream interface {
	// run reads until the context ends. It hands the rows of a transaction on at its
	// end, or before it when there are most of them. Whoever takes a chunk owns it.
	run(ctx context.Context, most int, take func([]row) error) error
	close()
}

// database opens what the floor needs.
type database interface {
	openClaims(ctx context.Context) (claimer, error)
	openCompletions(ctx context.Context) (session, error)
	openStream(ctx context.Context, rows *ledger) (stream, error)
}

// open returns the database of a configuration. It connects to nothing yet.
func (c *Config) open() (database, error) {
	layout, err := c.layout()
	if err != nil {
		return nil, err
	}
	switch at := config.URL(c.URL); {
	case at.Mongo():
		return &mongoDatabase{cfg: c, layout: layout}, nil
	case at.MySQL():
		return &mysqlDatabase{cfg: c, table: &mysqlTable{name: c.Table, layout: layout}}, nil
	}
	return &pgDatabase{cfg: c, table: &pgTable{name: c.Table, layout: layout}}, nil
}

// literal is a status as a literal of SQL, which takes the type of its column.
func literal(l *store.Layout, s store.Status) string {
	if l.State == store.StateNumbers {
		return fmt.Sprintf("'%d'", l.Numbers[s])
	}
	return "'" + strings.ReplaceAll(l.Words[s], "'", "''") + "'"
}
