package floor_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// pgTables have the columns of the layouts. The defaults are those of a pending row.
var pgTables = map[string]string{
	"flowcatalyst": `(id varchar(13) PRIMARY KEY, payload text, status varchar(20) NOT NULL DEFAULT 'PENDING',
		created_at timestamp NOT NULL DEFAULT now(), processed_at timestamp)`,
	"outbox-messages": `(id varchar(26) PRIMARY KEY, payload jsonb, status smallint NOT NULL DEFAULT 0,
		created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz)`,
}

// pgServer is PostgreSQL, with a publication and a slot.
type pgServer struct {
	url  string
	conn *pgx.Conn
	cast string // the payload's type
}

func newPostgres(t *testing.T, version int, layout string) *place {
	t.Helper()
	p := &place{cfg: floor.Config{URL: servers.Database(t, version), Publication: `The "Rows"`, Table: `"The Shop".rows`}}
	p.cfg.Slot = "floor_" + p.cfg.URL[strings.LastIndexByte(p.cfg.URL, '_')+1:][:12]
	p.recent = "processed_at BETWEEN now() - interval '1 hour' AND now()"
	servers.Exec(t, p.cfg.URL, `CREATE SCHEMA "The Shop"`, "CREATE TABLE "+p.cfg.Table+" "+pgTables[layout],
		"CREATE INDEX ON "+p.cfg.Table+" (status, created_at)",
		`CREATE PUBLICATION "The ""Rows""" FOR TABLE `+p.cfg.Table+" WITH (publish = 'insert')",
		"SELECT pg_create_logical_replication_slot('"+p.cfg.Slot+"', 'pgoutput')")
	s := &pgServer{url: p.cfg.URL, conn: servers.Connect(t, p.cfg.URL), cast: "text"}
	if layout == "outbox-messages" {
		s.cast = "jsonb"
	}
	p.on = s
	return p
}

func (s *pgServer) exec(t *testing.T, statements ...string) {
	t.Helper()
	servers.Exec(t, s.url, statements...)
}

func (s *pgServer) insert(ctx context.Context, into string, ids, payloads []string) error {
	_, err := s.conn.Exec(ctx, "INSERT INTO "+into+" (id, payload) SELECT id, payload::"+s.cast+" FROM unnest($1::text[], $2::text[]) u(id, payload)", ids, payloads)
	return err
}

func (s *pgServer) count(ctx context.Context, from string) (n int, err error) {
	err = s.conn.QueryRow(ctx, "SELECT count(*) FROM "+from).Scan(&n)
	return n, err
}

// awaitConfirmed waits until the slot has advanced over everything written by now.
func (s *pgServer) awaitConfirmed(p *place) {
	p.t.Helper()
	ctx := context.Background()
	var end string
	if err := s.conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		p.t.Fatal(err)
	}
	p.within("the slot does not move on", func() (moved bool) {
		err := s.conn.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2",
			end, p.cfg.Slot).Scan(&moved)
		if err != nil {
			p.t.Fatal(err)
		}
		return moved
	})
}

var mysqlTables = map[string]string{
	"flowcatalyst": `(id varchar(13) PRIMARY KEY, payload longtext, status varchar(20) NOT NULL DEFAULT 'PENDING',
		created_at timestamp NOT NULL DEFAULT now(), processed_at timestamp NULL, INDEX (status, created_at))`,
	"outbox-messages": `(id varchar(26) PRIMARY KEY, payload longtext, status smallint NOT NULL DEFAULT 0,
		created_at datetime(3) NOT NULL DEFAULT now(3), updated_at datetime(3), headers json, INDEX (status, created_at))`,
}

// mysqlServer is MySQL or MariaDB.
type mysqlServer struct {
	url string
	db  *sql.DB
}

func newMySQL(t *testing.T, f servers.Flavour, layout string) *place {
	t.Helper()
	p := &place{cfg: floor.Config{URL: f.Database(t), Table: "the rows"}}
	p.recent = "processed_at BETWEEN UTC_TIMESTAMP() - INTERVAL 1 HOUR AND UTC_TIMESTAMP()"
	s := &mysqlServer{url: p.cfg.URL, db: servers.OpenMySQL(t, p.cfg.URL)}
	p.on = s
	s.exec(t, "CREATE TABLE "+p.table()+" "+mysqlTables[layout]+" CHARACTER SET utf8mb4")
	ask := "SELECT @@GLOBAL.gtid_executed"
	if f == servers.MariaDB {
		ask = "SELECT @@GLOBAL.gtid_binlog_pos"
	}
	if err := s.db.QueryRowContext(t.Context(), ask).Scan(&p.cfg.From); err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *mysqlServer) exec(t *testing.T, statements ...string) {
	t.Helper()
	servers.ExecMySQL(t, s.url, statements...)
}

func (s *mysqlServer) insert(ctx context.Context, into string, ids, payloads []string) error {
	var values []any
	for i := range ids {
		values = append(values, ids[i], payloads[i])
	}
	_, err := s.db.ExecContext(ctx, "INSERT INTO "+into+" (id, payload) VALUES (?, ?)"+strings.Repeat(", (?, ?)", len(ids)-1), values...)
	return err
}

func (s *mysqlServer) count(ctx context.Context, from string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT count(*) FROM "+from).Scan(&n)
	return n, err
}
