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
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// postgresTables creates the schema and the tables of the example service. Its %[1]s
// is the schema.
const postgresTables = `
CREATE SCHEMA %[1]s;
CREATE TABLE %[1]s.orders (
    id VARCHAR(13) PRIMARY KEY,
    customer TEXT NOT NULL,
    amount_cents BIGINT NOT NULL,
    created_at TIMESTAMP NOT NULL
);
CREATE TABLE %[1]s.outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL,
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_events_status ON %[1]s.outbox_events(status, message_group, created_at);
`

// postgresSchema is the quickstart's own schema in a PostgreSQL database.
type postgresSchema struct {
	name   string // of the schema, the slot, the publication and the relay
	config *pgx.ConnConfig
	conn   *pgx.Conn
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
	if s.conn, err = demodb.OpenPostgres(ctx, s.config); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if note, err = s.leftovers(ctx); err != nil {
		return "", err
	}
	if err := s.conn.QueryRow(ctx, "SELECT to_regnamespace('sluicebox') IS NOT NULL").Scan(&s.shared); err != nil {
		return "", fmt.Errorf("look up schema sluicebox: %w", err)
	}
	s.created = true
	// The simple protocol runs a script of several statements in one transaction.
	_, err = s.conn.Exec(ctx, fmt.Sprintf(postgresTables, s.name), pgx.QueryExecModeSimpleProtocol)
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
	conn, err := demodb.OpenPostgres(ctx, s.config)
	if err != nil {
		return nil, err
	}
	return &postgresSession{
		conn:  conn,
		order: "INSERT INTO " + s.name + ".orders " + orderColumns + " VALUES ($1, $2, $3, now())",
		event: "INSERT INTO " + s.name + ".outbox_events " + eventColumns + " VALUES ($1, 'EVENT', $2, $3, 'PENDING', now())",
	}, nil
}

func (s *postgresSchema) countByStatus(ctx context.Context) (map[string]int, error) {
	states := map[string]int{}
	var status string
	var n int
	rows, err := s.conn.Query(ctx, "SELECT status, count(*) FROM "+s.name+".outbox_events GROUP BY status")
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&status, &n}, func() error { states[status] = n; return nil })
	}
	if err != nil {
		return nil, fmt.Errorf("count rows by status: %w", err)
	}
	return states, nil
}

// isStreaming looks for the replication slot, which the relay creates before it reads
// the WAL.
func (s *postgresSchema) isStreaming(ctx context.Context) (bool, error) {
	var there bool
	err := s.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", s.name).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("look up slot %s: %w", s.name, err)
	}
	return there, nil
}

type postgresSession struct {
	conn         *pgx.Conn
	order, event string
}

func (s *postgresSession) commit(ctx context.Context, o order) error {
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.order, o.id(), o.customer(), o.cents()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.event, o.id(), o.customer(), o.payload())
		return err
	})
	if err != nil {
		return fmt.Errorf("commit order %s: %w", o.id(), err)
	}
	return nil
}

func (s *postgresSession) close() { demodb.ClosePostgres(s.conn) }
