package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// publishedSince is how often a run asks whether the tables are published as they
// were: what is inserted meanwhile is in no log, and nothing else tells.
const publishedSince = 5 * time.Second

// attend looks after a run until its context ends: heartbeats, and the
// publication.
func (s *Source) attend(ctx context.Context, st *stream) {
	tick := time.NewTicker(min(publishedSince, s.heartbeat()))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.interrupt()
			return
		case <-tick.C:
		}
		if still := time.Since(time.Unix(0, st.moved.Load())); s.cfg.HeartbeatInterval > 0 && still >= s.cfg.HeartbeatInterval {
			// Without it the log of an idle database is kept longer, that is
			// all: the next one tries again.
			_ = s.control.exec(ctx, "SELECT pg_logical_emit_message(false, $1, '')", s.cfg.Name+".heartbeat")
		}
		var now string
		err := s.control.do(ctx, func(conn *pgx.Conn) (err error) {
			now, err = s.publishedNow(ctx, conn)
			return err
		})
		if err == nil && now != s.published {
			st.fail(&capture.LostError{Reason: fmt.Sprintf("publication %s or a table of it was changed or made anew", s.cfg.Name)})
		}
	}
}

func (s *Source) heartbeat() time.Duration {
	if s.cfg.HeartbeatInterval < 0 {
		return publishedSince
	}
	return s.cfg.HeartbeatInterval
}

// watch ends a run when the server begins to shut down: it would wait for this
// stream until everything in it is acknowledged, which takes statements that it
// takes no more. A session that only listens is told at once.
func (s *Source) watch(ctx context.Context, st *stream) {
	for ctx.Err() == nil {
		err := s.listen(ctx)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "57P") { // admin_shutdown, crash_shutdown, cannot_connect_now
			st.fail(fmt.Errorf("the server ends its sessions: %w", err))
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second): // it was cut off, or no session is to be had
		}
	}
}

// listen holds a session until it ends.
func (s *Source) listen(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, s.control.config)
	if err != nil {
		return err
	}
	defer closeSession(conn.PgConn())
	return conn.PgConn().WaitForNotification(ctx)
}

// publishedNow describes the publication and the tables as they are, so that
// another description means that rows may be missing from the log. It holds OIDs:
// what was dropped and made again is another.
func (s *Source) publishedNow(ctx context.Context, conn *pgx.Conn) (string, error) {
	names := make([]string, len(s.cfg.Outboxes))
	for i := range s.cfg.Outboxes {
		names[i] = pgstore.TableName(&s.cfg.Outboxes[i])
	}
	var text string
	err := conn.QueryRow(ctx, `
WITH outbox AS (SELECT DISTINCT to_regclass(n)::oid AS oid FROM unnest($2::text[]) n)
SELECT 'tables ' || coalesce((SELECT string_agg(coalesce(oid::text, 'gone'), ',' ORDER BY oid) FROM outbox), '') ||
	coalesce((SELECT ' publication ' || p.oid || (CASE WHEN p.pubinsert THEN '' ELSE ' of nothing' END) ||
		coalesce((SELECT ' ' || string_agg(r.oid || '=' || r.prrelid, ',' ORDER BY r.oid)
			FROM pg_publication_rel r JOIN outbox ON outbox.oid = r.prrelid WHERE r.prpubid = p.oid), '')
	FROM pg_publication p WHERE p.pubname = $1), '')`, s.cfg.Name, names).Scan(&text)
	if err != nil {
		return "", fmt.Errorf("look at publication %s: %w", s.cfg.Name, pgstore.Explain(err))
	}
	return text, nil
}

// columnError says that the log shows a table without columns that the layout
// needs. It is a *store.SetupError to those who cannot look at the table.
type columnError struct {
	store.SetupError
	outbox  *store.Outbox
	columns []string
}

// Unwrap makes the error a *store.SetupError.
func (e *columnError) Unwrap() error { return &e.SetupError }

// explainColumns turns an error about columns that the table has by now into a
// lost log: what the log holds of the time without them cannot be read, and the
// table can.
func (s *Source) explainColumns(ctx context.Context, err error) error {
	var missing *columnError
	if !errors.As(err, &missing) {
		return err
	}
	var there int
	lookErr := s.control.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = ANY ($2) AND NOT attisdropped AND attgenerated = ''`,
			pgstore.TableName(missing.outbox), missing.columns).Scan(&there)
	})
	if lookErr != nil || there < len(missing.columns) {
		return err
	}
	return &capture.LostError{Reason: fmt.Sprintf("the log shows table %s without %s, which it has by now",
		pgstore.TableName(missing.outbox), strings.Join(missing.columns, " and "))}
}
