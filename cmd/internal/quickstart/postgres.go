package quickstart

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// postgresSchema is the quickstart's own schema in a PostgreSQL database.
type postgresSchema struct {
	name   string // of the schema, the slot, the publication and the relay
	config *pgx.ConnConfig
	conn   *demodb.SQL
	// shared is set if the schema sluicebox existed before.
	shared bool
	// created is set once the database may have objects to remove.
	created bool
}

// newPostgres prepares a schema in the database of a URL, without connecting.
func newPostgres(raw, name string) (*postgresSchema, databaseInfo, error) {
	cfg, err := pgstore.ParseURL(raw, "sluicebox quickstart "+name)
	if err != nil {
		return nil, databaseInfo{}, err
	}
	psql := "psql " + shellWord(withoutPassword(raw))
	return &postgresSchema{name: name, config: cfg}, databaseInfo{
		name: name, url: raw, table: name + ".outbox_events",
		description:    fmt.Sprintf("schema %s of database %s on %s", name, cfg.Database, cfg.Host),
		inspectCommand: psql + " -c 'SELECT status, count(*), max(retry_count) FROM " + name + ".outbox_events GROUP BY status'",
		removeCommand:  psql + " -c " + strings.Join(shellWords(postgresRemoval(name)), " -c "),
		remainsNote:    "The schema sluicebox stays, with the tables of all relays. Until the slot is dropped, the server retains WAL for it.",
	}, nil
}

// withoutPassword removes the passwords from a URL, so that it can be printed. With it
// psql prompts for the password.
func withoutPassword(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "URL" // unreachable: ParseURL has parsed it
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	q := u.Query()
	q.Del("password")
	q.Del("sslpassword")
	u.RawQuery = q.Encode()
	return u.String()
}

func (s *postgresSchema) setUp(ctx context.Context) (note string, err error) {
	if s.conn, err = demodb.OpenSQL(ctx, s.config); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if note, err = s.leftovers(ctx); err != nil {
		return "", err
	}
	if err := s.conn.QueryRowContext(ctx, "SELECT to_regnamespace('sluicebox') IS NOT NULL").Scan(&s.shared); err != nil {
		return "", fmt.Errorf("look up schema sluicebox: %w", err)
	}
	statements := tables(layouts.Postgres, s.name+".")
	s.created = true
	// Without parameters, a script of several statements runs in one transaction.
	_, err = s.conn.ExecContext(ctx, "CREATE SCHEMA "+s.name+";\n"+strings.Join(statements, "\n"))
	return note, s.explain(err)
}

// explain adds the missing GRANT to a privilege error.
func (s *postgresSchema) explain(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return &store.SetupError{
			Problem: fmt.Sprintf("user %s may not create a schema in the database: %s", s.config.User, pg.Message),
			Remedy: fmt.Sprintf("run `GRANT CREATE ON DATABASE %s TO %s;` as its owner, or use another database",
				pgstore.Ident(s.config.Database), pgstore.Ident(s.config.User)),
		}
	}
	if err != nil {
		return fmt.Errorf("create schema %s: %w", s.name, err)
	}
	return nil
}

func (s *postgresSchema) session(ctx context.Context) (session, error) {
	conn, err := s.conn.Another(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlSession{
		conn:    conn,
		order:   "INSERT INTO " + s.name + ".orders " + orderColumns + " VALUES ($1, $2, $3, now())",
		event:   "INSERT INTO " + s.name + ".outbox_events " + eventColumns + " VALUES ($1, 'EVENT', $2, $3, 'PENDING', now())",
		release: func() { _ = conn.Close() }, // the server may be gone
	}, nil
}

func (s *postgresSchema) countByStatus(ctx context.Context) (map[string]int, error) {
	return countStates(ctx, s.conn.Pool, s.name+".outbox_events")
}

// isStreaming looks for the replication slot, which the relay creates before it reads
// the WAL.
func (s *postgresSchema) isStreaming(ctx context.Context) (bool, error) {
	var there bool
	err := s.conn.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", s.name).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("look up slot %s: %w", s.name, err)
	}
	return there, nil
}
