package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

// mostProfiled is the longest time that a profile of the processor covers.
const mostProfiled = 5 * time.Second

// profile takes profiles of a relay from now on, in the first turn, and counts the
// server's statements; of a floor it counts these alone. It returns what waits for
// all that.
func (b *bench) profile(ctx context.Context, p *place, pr *process) (wait func() error) {
	if b.opts.Profile == "" || b.turn > 0 {
		return func() error { return nil }
	}
	counted := p.countStatements(ctx) == nil
	if !counted {
		b.say("statements are not counted: start the server with shared_preload_libraries = 'pg_stat_statements' for that")
	}
	done := make(chan error, 1)
	go func() { done <- b.processor(ctx, pr) }()
	return func() error {
		err := <-done
		if pr.admin != "" {
			for _, kind := range []string{"allocs", "mutex", "goroutine"} {
				err = errors.Join(err, b.fetch(ctx, pr, "/debug/pprof/"+kind, kind))
			}
		}
		if counted {
			err = errors.Join(err, b.writeStatements(ctx, p, pr))
		}
		return err
	}
}

// processor profiles the relay's use of the processor.
func (b *bench) processor(ctx context.Context, pr *process) error {
	if pr.admin == "" {
		return nil
	}
	d := mostProfiled
	if b.opts.Duration > 0 {
		d = max(time.Second, min(d, b.opts.Duration))
	}
	return b.fetch(ctx, pr, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(d.Seconds())), "cpu")
}

// fetch writes one profile of the relay into the folder.
func (b *bench) fetch(ctx context.Context, pr *process, path, kind string) error {
	resp, err := pr.get(ctx, path)
	if err != nil {
		return fmt.Errorf("profile the relay: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile the relay: %s answered %s", path, resp.Status)
	}
	return b.save(kind+".pprof", resp.Body)
}

func (b *bench) save(name string, from io.Reader) error {
	if err := os.MkdirAll(b.opts.Profile, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(b.opts.Profile, b.opts.Scenario+"-"+name))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// countStatements begins to count the statements of the database anew.
func (p *place) countStatements(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()")
	return err
}

// writeStatements writes what the statements of the database took.
func (b *bench) writeStatements(ctx context.Context, p *place, pr *process) error {
	rows, err := p.conn.Query(ctx, `
SELECT calls, rows, total_exec_time, total_plan_time, shared_blks_dirtied, wal_bytes::float8, query
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY total_exec_time DESC LIMIT 20`)
	if err != nil {
		return fmt.Errorf("read the statements: %w", err)
	}
	var text bytes.Buffer
	var calls, n, dirtied int64
	var exec, plan, wal float64
	var query string
	_, err = pgx.ForEachRow(rows, []any{&calls, &n, &exec, &plan, &dirtied, &wal, &query}, func() error {
		fmt.Fprintf(&text, "%d calls, %d rows, %.1f ms executing, %.1f ms planning, %d blocks dirtied, %.0f bytes of log\n%s\n\n",
			calls, n, exec, plan, dirtied, wal, query)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the statements: %w", err)
	}
	side := relaySide
	if pr.admin == "" {
		side = floorSide
	}
	return b.save(side+"-statements.txt", &text)
}
