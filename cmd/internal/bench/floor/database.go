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
	// write claims rows, or completes them, and returns the number of rows it found.
	write(rows []row) (int, error)
	// bind aborts the session's statements when a context ends. This is cheaper than
	// watching the context in each statement. unbind undoes it.
	bind(ctx context.Context) (unbind func())
	close()
}

// claimer is the session that claims.
type claimer interface {
	session
	// claimedOf returns the ids of the claimed rows among rows. Only the floor claims rows.
	claimedOf(rows []row) (map[string]bool, error)
}

// stream reads the log.
type stream interface {
	// run reads until the context ends. It passes the rows of a transaction to take at the
	// end of the transaction, or earlier in chunks of at most maxRows rows. take owns the
	// chunk.
	run(ctx context.Context, maxRows int, take func([]row) error) error
	close()
}

// database opens the sessions and the stream of the floor.
type database interface {
	openClaims(ctx context.Context) (claimer, error)
	// openCompletions opens the session that completes rows: claimed ones, or pending ones.
	openCompletions(ctx context.Context, pending bool) (session, error)
	openStream(ctx context.Context, rows *ledger) (stream, error)
}

// open returns the database of a configuration, without connecting.
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

// literal returns a status as an SQL literal, which takes the type of its column.
func literal(l *store.Layout, s store.Status) string {
	if l.State == store.StateNumbers {
		return fmt.Sprintf("'%d'", l.Numbers[s])
	}
	return "'" + strings.ReplaceAll(l.Words[s], "'", "''") + "'"
}
