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
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store/backoff"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// monitorInterval is how often a run checks that the tables are still published. Rows
// inserted while they are not published are missing from the WAL, and nothing else
// reveals that.
const monitorInterval = 5 * time.Second

// monitorTimeout bounds one check, because a disconnected session must not stop the
// monitoring.
const monitorTimeout = 4 * time.Second

// monitor writes heartbeats and checks the publication until its context ends.
func (st *stream) monitor(ctx context.Context) {
	interval := monitorInterval
	if heartbeat := st.src.cfg.HeartbeatInterval; heartbeat > 0 {
		interval = min(interval, heartbeat)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			st.src.wake.interrupt()
			return
		case <-tick.C:
		}
		st.monitorOnce(ctx)
	}
}

// monitorOnce runs one round. The next round retries whatever fails: without a heartbeat
// an idle database retains WAL for longer, and a change of the publication is still
// detected then.
func (st *stream) monitorOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	if idle := time.Since(time.Unix(0, st.lastActivity.Load())); st.src.cfg.HeartbeatInterval > 0 && idle >= st.src.cfg.HeartbeatInterval {
		_ = st.src.control.exec(ctx, "SELECT pg_logical_emit_message(false, $1, '')", st.src.cfg.Name+heartbeatSuffix)
	}
	if st.src.watched != nil {
		return // without a publication
	}
	err := st.src.checkPublished(ctx)
	var lost *capture.LostError
	if errors.As(err, &lost) || isShutdown(err) {
		st.fail(err)
	}
}

// isShutdown reports whether the server announced its shutdown on a session.
func isShutdown(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "57P01", "57P02", "57P03": // admin_shutdown, crash_shutdown, cannot_connect_now
		return true
	}
	return false
}

// checkPublished returns a *capture.LostError if the publication of the tables has
// changed, or if they now have partitions or child tables that make the WAL misleading.
func (s *Source) checkPublished(ctx context.Context) error {
	return s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		now, err := s.catalog(conn).readPublicationState(ctx, s.server)
		if err == nil && now != s.publicationState {
			err = &capture.LostError{Reason: describePublicationChange(s.cfg.Name, s.publicationState, now), Readable: true}
		}
		if err != nil {
			return err
		}
		list, err := s.catalog(conn).findPartitionFaults(ctx, s.server.tables)
		if err == nil && len(list) > 0 {
			err = &capture.LostError{Reason: list[0].Problem}
		}
		return err
	})
}

// describePublicationChange describes the difference between two results of
// readPublicationState.
func describePublicationChange(name, was, now string) string {
	tablesWas, _, _ := strings.Cut(was, publicationSeparator)
	tablesNow, _, exists := strings.Cut(now, publicationSeparator)
	switch {
	case !exists:
		return fmt.Sprintf("publication %s is gone", name)
	case tablesWas != tablesNow:
		return fmt.Sprintf("a table of publication %s was dropped, recreated or changed from or to UNLOGGED", name)
	default:
		return fmt.Sprintf("publication %s was changed or recreated", name)
	}
}

// watchShutdown ends a run when the server begins to shut down, because the server would
// wait for acknowledgements that take statements it no longer accepts.
func (st *stream) watchShutdown(ctx context.Context) {
	for ctx.Err() == nil {
		err := st.listenShutdown(ctx)
		if isShutdown(err) {
			st.fail(fmt.Errorf("server is shutting down: %w", err))
			return
		}
		_ = backoff.Sleep(ctx, time.Second) // the connection was lost, or no session is available
	}
}

// listenShutdown keeps a session open until it ends.
func (st *stream) listenShutdown(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, st.src.control.config)
	if err != nil {
		return err
	}
	defer closeSession(conn.PgConn())
	return conn.PgConn().WaitForNotification(ctx)
}

// publicationSeparator precedes the publication's part of the state, if the publication
// exists.
const publicationSeparator = " publication "

// A renamed table is looked up by its OID, because it is published as before and may get
// its name back. Schemas can be published since version 15.
const publicationStateSQL = `
WITH outbox AS (
	SELECT DISTINCT c.oid, c.relnamespace, c.relpersistence
	FROM unnest($2::text[], $3::oid[]) u (name, known) LEFT JOIN pg_class c ON c.oid = coalesce(to_regclass(u.name)::oid, u.known))
SELECT 'tables ' || coalesce((SELECT string_agg(coalesce(oid || CASE relpersistence WHEN 'p' THEN '' ELSE ' unlogged' END, 'gone'), ',' ORDER BY oid) FROM outbox), '') ||
	coalesce((SELECT '` + publicationSeparator + `' || p.oid || '.' || p.xmin ||
		coalesce((SELECT ' ' || string_agg(r.oid || '.' || r.xmin || '=' || r.prrelid, ',' ORDER BY r.oid)
			FROM pg_publication_rel r JOIN outbox ON outbox.oid = r.prrelid WHERE r.prpubid = p.oid), '')%s
	FROM pg_publication p WHERE p.pubname = $1), '')`

const publishedSchemasSQL = ` ||
		coalesce((SELECT ' schemas ' || string_agg(DISTINCT n.oid || '.' || n.xmin || '=' || n.pnnspid, ',')
			FROM pg_publication_namespace n JOIN outbox ON outbox.relnamespace = n.pnnspid WHERE n.pnpubid = p.oid), '')`

// readPublicationState describes the publication and the tables. If the description
// changes, rows may be missing from the WAL. It contains OIDs, which change when an
// object is dropped and recreated. It also contains the transactions that wrote the
// publication, which change even if a change was reverted.
func (c *catalog) readPublicationState(ctx context.Context, sv *server) (string, error) {
	var names []string
	var known []uint32
	for _, t := range sv.tables {
		for _, o := range t.outboxes {
			names, known = append(names, pgstore.TableName(o)), append(known, t.oid)
		}
	}

	schemas := ""
	if sv.version >= 150000 {
		schemas = publishedSchemasSQL
	}

	var text string
	if err := c.conn.QueryRow(ctx, fmt.Sprintf(publicationStateSQL, schemas), c.cfg.Name, names, known).Scan(&text); err != nil {
		return "", fmt.Errorf("read state of publication %s: %w", c.cfg.Name, pgstore.Explain(err))
	}
	return text, nil
}

// explainMissingColumns returns a lost log if the table has the missing columns by now. Open
// finds out whether the WAL still lacks them.
func (s *Source) explainMissingColumns(ctx context.Context, err error) error {
	return fault.ExplainMissingColumns(err, func(missing *fault.MissingColumnsError) bool {
		var found int
		readErr := s.control.do(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `
SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = ANY ($2) AND NOT attisdropped`,
				pgstore.TableName(missing.Outbox), missing.Columns).Scan(&found)
		})
		return readErr == nil && found >= len(missing.Columns)
	})
}
