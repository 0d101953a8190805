package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// postgresServer is a PostgreSQL server.
type postgresServer struct {
	session *demodb.SQL
	info    serverInfo
}

func connectPostgres(ctx context.Context, source string) (*postgresServer, error) {
	session, err := dialPostgres(ctx, source)
	if err != nil {
		return nil, err
	}
	s := &postgresServer{session: session, info: serverInfo{settings: map[string]string{}}}
	if err := s.checkServer(ctx); err != nil {
		s.close()
		return nil, err
	}
	var pid int
	if err := session.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err == nil {
		backend, _ := readProcess(pid)
		s.info.process = localProcess(session.Host(), backend.parent, "postgres", "postmaster")
	}
	return s, nil
}

// checkServer checks the rights of the role and the wal_level.
func (s *postgresServer) checkServer(ctx context.Context) error {
	var mayMake, mayStream bool
	var user, version, walLevel string
	err := s.session.QueryRowContext(ctx, `
SELECT current_user, current_setting('server_version'), current_setting('wal_level'),
	(SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user),
	(SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)`).
		Scan(&user, &version, &walLevel, &mayMake, &mayStream)
	if err == nil {
		err = s.info.readSettings(ctx, s.session, `SELECT name, current_setting(name) FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'wal_compression')`)
	}
	if err != nil {
		return fmt.Errorf("read server settings: %w", err)
	}

	s.info.version = "PostgreSQL " + version
	switch {
	case !mayMake || !mayStream:
		return &store.SetupError{
			Problem: "role may not create databases and read their WAL, which the benchmark does",
			Remedy:  fmt.Sprintf("run `ALTER ROLE %s CREATEDB REPLICATION;` as a superuser, or use another server", pgstore.Ident(user)),
		}
	case walLevel != "logical":
		return &store.SetupError{
			Problem: fmt.Sprintf("wal_level is %s, must be logical", walLevel),
			Remedy:  "run `ALTER SYSTEM SET wal_level = 'logical';` and restart the server",
		}
	}
	return nil
}

func dialPostgres(ctx context.Context, source string) (*demodb.SQL, error) {
	cfg, err := pgstore.ParseURL(source, "sluicebox bench")
	if err != nil {
		return nil, err
	}
	return demodb.OpenSQL(ctx, cfg)
}

func (s *postgresServer) serverInfo() serverInfo { return s.info }
func (s *postgresServer) close()                 { s.session.Close() }

func (s *postgresServer) create(ctx context.Context, name, url string, of *outboxTable) (database, error) {
	if _, err := s.session.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	d := &pgDatabase{sqlDatabase{name: name, url: url, table: of, dial: dialPostgres, words: sqlWords{
		id: "lpad(n::text, %d, '0')", group: "('g' || %d + n %% %d)", payload: "'%s' || %s || $1", now: "now()", one: "(VALUES ($2::bigint)) v (n)",
	}}}
	if err := d.openTable(ctx, of.create(layouts.Postgres)); err != nil {
		return nil, err
	}
	return d, nil
}

// drop removes the slot and the database.
func (s *postgresServer) drop(ctx context.Context, name string) error {
	if err := s.session.DropSlot(ctx, name); err != nil {
		return err
	}
	_, err := s.session.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

// pgDatabase is a PostgreSQL database.
type pgDatabase struct{ sqlDatabase }

func (d *pgDatabase) load(ctx context.Context, r *rowSpan) error {
	_, err := d.session.ExecContext(ctx, d.insert(r, "generate_series($2::bigint, $3::bigint) n"), r.padding, r.first, r.last)
	return err
}

func (d *pgDatabase) flush(ctx context.Context) error {
	for _, statement := range []string{"VACUUM (ANALYZE) " + d.table.name, "CHECKPOINT"} {
		if _, err := d.session.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// prepareFloor creates a publication and a slot.
func (d *pgDatabase) prepareFloor(ctx context.Context, cfg *floor.Config) error {
	_, err := d.session.ExecContext(ctx, "CREATE PUBLICATION "+d.name+" FOR TABLE "+d.table.name+" WITH (publish = 'insert')")
	if err == nil {
		_, err = d.session.ExecContext(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", d.name)
	}
	cfg.Slot, cfg.Publication = d.name, d.name
	return err
}

func (d *pgDatabase) scans(ctx context.Context) (n int, err error) {
	err = d.session.QueryRowContext(ctx, "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1", d.table.name).Scan(&n)
	return n, err
}

func (d *pgDatabase) countStatements(ctx context.Context) error {
	_, err := d.session.ExecContext(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()")
	if err != nil {
		return errors.New("pg_stat_statements is not loaded; start the server with shared_preload_libraries = 'pg_stat_statements'")
	}
	return nil
}

// relayStatements counts the statements without those of the writers: only writers insert outbox rows.
func (d *pgDatabase) relayStatements(ctx context.Context) (n int, err error) {
	err = d.session.QueryRowContext(ctx, `
SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query NOT LIKE $1 AND query NOT LIKE '%pg_stat_statements%'`,
		"INSERT INTO "+d.table.name+" %").Scan(&n)
	return n, err
}

func (d *pgDatabase) statements(ctx context.Context) (string, error) {
	return d.statistics(ctx, `
SELECT concat(calls, ' calls, ', rows, ' rows, ', round(total_exec_time::numeric, 1), ' ms executing, ', round(total_plan_time::numeric, 1), ' ms planning, ',
	shared_blks_dirtied, ' blocks dirtied, ', wal_bytes, ' bytes of WAL'), query
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY total_exec_time DESC LIMIT 20`)
}
