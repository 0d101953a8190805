package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// callTimeout bounds a statement that should take no time.
const callTimeout = 30 * time.Second

// server is the database server, on which databases are made and removed.
type server struct {
	source  string // the URL
	conn    *pgx.Conn
	version string
	// settings are those that a figure depends on.
	settings map[string]string
}

// connectServer connects to the server and makes sure that the benchmark can be
// run there. The error is a *store.SetupError where the server says no.
func connectServer(ctx context.Context, source config.URL) (*server, error) {
	s := &server{source: source.Reveal(), settings: map[string]string{}}
	var err error
	if s.conn, err = dial(ctx, s.source); err != nil {
		return nil, err
	}
	var mayMake, mayStream bool
	var walLevel string
	err = s.conn.QueryRow(ctx, `
SELECT current_setting('server_version'), current_setting('wal_level'),
	(SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user),
	(SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)`).
		Scan(&s.version, &walLevel, &mayMake, &mayStream)
	if err == nil {
		err = s.readSettings(ctx)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("look at the server: %w", err)
	}
	user := pgstore.Ident(s.conn.Config().User)
	switch {
	case !mayMake || !mayStream:
		err = &store.SetupError{
			Problem: "the benchmark makes databases and reads their log, and the role may not",
			Remedy:  fmt.Sprintf("run `ALTER ROLE %s CREATEDB REPLICATION;` as a superuser, or use another server", user),
		}
	case walLevel != "logical":
		err = &store.SetupError{
			Problem: fmt.Sprintf("wal_level is %s, which keeps no log that could be relayed", walLevel),
			Remedy:  "run `ALTER SYSTEM SET wal_level = 'logical';` and restart the server",
		}
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) readSettings(ctx context.Context) error {
	var name, setting string
	rows, err := s.conn.Query(ctx, `SELECT name, current_setting(name) FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'wal_compression')`)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, []any{&name, &setting}, func() error { s.settings[name] = setting; return nil })
	return err
}

func dial(ctx context.Context, source string) (*pgx.Conn, error) {
	cfg, err := pgstore.ParseURL(source, "sluicebox bench")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, pgstore.ExplainConnect(cfg, err)
	}
	return conn, nil
}

// hangUp says goodbye for a second and then closes the connection all the same.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server may be gone
}

func (s *server) close() { hangUp(s.conn) }

// namePrefix begins the names of the databases, the relays and the slots.
const namePrefix = "sluicebox_bench_"

// The layouts that are measured.
const (
	layoutWords   = "flowcatalyst"
	layoutNumbers = "outbox-messages"
)

// outboxTable returns the outbox table of a layout, with the indices that its users
// have.
func outboxTable(layout string) (name, statements string) {
	if layout == layoutNumbers {
		return "outbox_messages", `
CREATE TABLE outbox_messages (
	id VARCHAR(26) PRIMARY KEY,
	type VARCHAR(20) NOT NULL,
	message_group VARCHAR(255),
	payload TEXT NOT NULL,
	status SMALLINT NOT NULL DEFAULT 0,
	retry_count SMALLINT NOT NULL DEFAULT 0,
	created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
	updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
	error_message TEXT,
	client_id VARCHAR(26),
	payload_size INT,
	headers JSONB
);
CREATE INDEX ON outbox_messages (status, message_group, created_at) WHERE status IN (0, 9);
CREATE INDEX ON outbox_messages (status, created_at) WHERE status IN (0, 9);
CREATE INDEX ON outbox_messages (client_id, status, created_at);`
	}
	return "outbox_events", `
CREATE TABLE outbox_events (
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
CREATE INDEX ON outbox_events (status, message_group, created_at);`
}

// place is a database with an outbox, made for the benchmark.
type place struct {
	srv    *server
	name   string // of the database, the relay, the slot and the publication
	url    string
	layout string
	table  string
	conn   *pgx.Conn
	rows   int // that were written so far
}

// newPlace makes a database with an empty outbox. Drop it.
func (s *server) newPlace(ctx context.Context, layout string) (*place, error) {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	table, statements := outboxTable(layout)
	p := &place{srv: s, name: namePrefix + hex.EncodeToString(b[:]), layout: layout, table: table}
	u, err := url.Parse(s.source)
	if err != nil {
		return nil, errors.New("the URL of the source cannot be read") // its own error would show a password
	}
	u.Path = "/" + p.name
	p.url = u.String()
	if _, err := s.conn.Exec(ctx, "CREATE DATABASE "+p.name); err != nil {
		return nil, fmt.Errorf("make database %s: %w", p.name, err)
	}
	if p.conn, err = dial(ctx, p.url); err == nil {
		_, err = p.conn.Exec(ctx, statements)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the outbox: %w", err), p.drop(ctx))
	}
	return p, nil
}

// drop removes the database and the slot, also after the end of the context.
func (p *place) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if p.conn != nil {
		hangUp(p.conn)
	}
	var err error
	for { // a walsender may need a moment to end
		_, err = p.srv.conn.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", p.name)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55006" { // object_in_use
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err == nil {
		_, err = p.srv.conn.Exec(ctx, "DROP DATABASE IF EXISTS "+p.name+" WITH (FORCE)")
	}
	if err != nil {
		return fmt.Errorf("remove database %s and its slot: %w", p.name, err)
	}
	return nil
}

// stream makes the publication and the slot that the floor reads.
func (p *place) stream(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "CREATE PUBLICATION "+p.name+" FOR TABLE "+p.table+" WITH (publish = 'insert')")
	if err == nil {
		_, err = p.conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", p.name)
	}
	if err != nil {
		return fmt.Errorf("make the floor's slot: %w", err)
	}
	return nil
}

// scans returns how often the outbox has been searched.
func (p *place) scans(ctx context.Context) (n int, err error) {
	err = p.conn.QueryRow(ctx, "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1", p.table).Scan(&n)
	return n, err
}
