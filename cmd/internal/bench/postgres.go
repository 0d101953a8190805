package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// postgresServer is a PostgreSQL server.
type postgresServer struct {
	conn *pgx.Conn
	info serverInfo
}

func connectPostgres(ctx context.Context, source string) (*postgresServer, error) {
	conn, err := dialPostgres(ctx, source)
	if err != nil {
		return nil, err
	}
	s := &postgresServer{conn: conn, info: serverInfo{settings: map[string]string{}}}
	if err := s.checkServer(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// checkServer checks the rights of the role and the wal_level.
func (s *postgresServer) checkServer(ctx context.Context) error {
	var mayMake, mayStream bool
	var version, walLevel string
	err := s.conn.QueryRow(ctx, `
SELECT current_setting('server_version'), current_setting('wal_level'),
	(SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user),
	(SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)`).
		Scan(&version, &walLevel, &mayMake, &mayStream)
	if err == nil {
		err = s.readSettings(ctx)
	}
	if err != nil {
		return fmt.Errorf("read server settings: %w", err)
	}

	s.info.version = "PostgreSQL " + version
	switch user := pgstore.Ident(s.conn.Config().User); {
	case !mayMake || !mayStream:
		return &store.SetupError{
			Problem: "role may not create databases and read their WAL, which the benchmark does",
			Remedy:  fmt.Sprintf("run `ALTER ROLE %s CREATEDB REPLICATION;` as a superuser, or use another server", user),
		}
	case walLevel != "logical":
		return &store.SetupError{
			Problem: fmt.Sprintf("wal_level is %s, must be logical", walLevel),
			Remedy:  "run `ALTER SYSTEM SET wal_level = 'logical';` and restart the server",
		}
	}
	return nil
}

func (s *postgresServer) readSettings(ctx context.Context) error {
	var name, setting string
	rows, err := s.conn.Query(ctx, `SELECT name, current_setting(name) FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'wal_compression')`)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, []any{&name, &setting}, func() error { s.info.settings[name] = setting; return nil })
	return err
}

func dialPostgres(ctx context.Context, source string) (*pgx.Conn, error) {
	cfg, err := pgstore.ParseURL(source, "sluicebox bench")
	if err != nil {
		return nil, err
	}
	return demodb.OpenPostgres(ctx, cfg)
}

func (s *postgresServer) serverInfo() serverInfo { return s.info }
func (s *postgresServer) close()                 { demodb.ClosePostgres(s.conn) }

func (s *postgresServer) create(ctx context.Context, name, url string, of *outboxTable) (database, error) {
	if _, err := s.conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	conn, err := dialPostgres(ctx, url)
	if err != nil {
		return nil, err
	}
	for _, statement := range of.postgres {
		if _, err := conn.Exec(ctx, statement); err != nil {
			demodb.ClosePostgres(conn)
			return nil, err
		}
	}
	return &pgDatabase{name: name, url: url, table: of, conn: conn}, nil
}

// drop removes the slot and the database.
func (s *postgresServer) drop(ctx context.Context, name string) error {
	if err := demodb.DropSlot(ctx, s.conn, name); err != nil {
		return err
	}
	_, err := s.conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

// pgDatabase is a PostgreSQL database.
type pgDatabase struct {
	name, url string
	table     *outboxTable
	conn      *pgx.Conn
}

func (d *pgDatabase) close() { demodb.ClosePostgres(d.conn) }

// insert returns the statement that writes the rows whose numbers n come from a query.
func (d *pgDatabase) insert(r *rowSpan, from string) string {
	columns, values := "", ""
	if r.completed {
		columns, values = ", processed_at", ", now()"
	}
	return fmt.Sprintf(`INSERT INTO %s (id, type, message_group, payload, status, created_at%s)
SELECT lpad(n::text, %d, '0'), 'EVENT', %s, '%s' || lpad(n::text, %d, '0') || $1, %s, now()%s FROM %s`,
		d.table.name, columns, idDigits, r.group("('g' || n %% %d)"), payloadHead, idDigits, r.status(d.table), values, from)
}

func (d *pgDatabase) load(ctx context.Context, r *rowSpan) error {
	_, err := d.conn.Exec(ctx, d.insert(r, "generate_series($2::bigint, $3::bigint) n"), r.padding, r.first, r.last)
	return err
}

func (d *pgDatabase) flush(ctx context.Context) error {
	for _, statement := range []string{"VACUUM (ANALYZE) " + d.table.name, "CHECKPOINT"} {
		if _, err := d.conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// pgWriter is a session that writes rows.
type pgWriter struct {
	conn    *pgx.Conn
	padding string
}

func (d *pgDatabase) writer(ctx context.Context, r *rowSpan) (rowWriter, error) {
	conn, err := dialPostgres(ctx, d.url)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Prepare(ctx, "write", d.insert(r, "(VALUES ($2::bigint)) v (n)")); err != nil {
		demodb.ClosePostgres(conn)
		return nil, err
	}
	return &pgWriter{conn: conn, padding: r.padding}, nil
}

func (w *pgWriter) write(ctx context.Context, n int) error {
	_, err := w.conn.Exec(ctx, "write", w.padding, n)
	return err
}

func (w *pgWriter) close() { demodb.ClosePostgres(w.conn) }

// prepareFloor creates a publication and a slot.
func (d *pgDatabase) prepareFloor(ctx context.Context, cfg *floor.Config) error {
	_, err := d.conn.Exec(ctx, "CREATE PUBLICATION "+d.name+" FOR TABLE "+d.table.name+" WITH (publish = 'insert')")
	if err == nil {
		_, err = d.conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", d.name)
	}
	cfg.Slot, cfg.Publication = d.name, d.name
	return err
}

func (d *pgDatabase) scans(ctx context.Context) (n int, err error) {
	err = d.conn.QueryRow(ctx, "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1", d.table.name).Scan(&n)
	return n, err
}

func (d *pgDatabase) countStatements(ctx context.Context) error {
	_, err := d.conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()")
	if err != nil {
		return errors.New("pg_stat_statements is not loaded; start the server with shared_preload_libraries = 'pg_stat_statements'")
	}
	return nil
}

func (d *pgDatabase) statements(ctx context.Context) (string, error) {
	rows, err := d.conn.Query(ctx, `
SELECT calls, rows, total_exec_time, total_plan_time, shared_blks_dirtied, wal_bytes::float8, query
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY total_exec_time DESC LIMIT 20`)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	var calls, n, dirtied int64
	var exec, plan, wal float64
	var query string
	_, err = pgx.ForEachRow(rows, []any{&calls, &n, &exec, &plan, &dirtied, &wal, &query}, func() error {
		fmt.Fprintf(&text, "%d calls, %d rows, %.1f ms executing, %.1f ms planning, %d blocks dirtied, %.0f bytes of WAL\n%s\n\n",
			calls, n, exec, plan, dirtied, wal, query)
		return nil
	})
	return text.String(), err
}
