package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// RequestSavepoint implements store.Requester.
func (s *Store) RequestSavepoint(ctx context.Context, name string, keep bool) error {
	err := store.ValidateSavepointName(name)
	if err == nil {
		b := &builder{}
		put := b.query(
			"WITH "+b.countRequest(),
			"INSERT INTO sluicebox.named (name, checkpoint, keep, wish, state)",
			"SELECT "+b.arg("name", "text")+", "+b.arg("checkpoint", "text")+", "+b.arg("keep", "boolean")+", "+b.arg("make", "text")+", "+
				b.arg("wanted", "text")+" FROM told",
			"ON CONFLICT DO NOTHING",
		)
		err = s.writeRequest(ctx, put, map[string]any{
			"checkpoint": name, "keep": keep, "make": replays.RequestMake, "wanted": string(store.SavepointRequested),
		}, store.ErrSavepointExists)
	}

	if err != nil {
		return fmt.Errorf("request checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestSavepointDeletion implements store.Requester.
func (s *Store) RequestSavepointDeletion(ctx context.Context, name string) error {
	b := &builder{}
	put := b.query(
		"WITH "+b.countRequest(),
		"UPDATE sluicebox.named SET wish = "+b.arg("drop", "text")+" FROM told",
		"WHERE name = "+b.arg("name", "text")+" AND checkpoint = "+b.arg("checkpoint", "text"),
	)
	if err := s.writeRequest(ctx, put, map[string]any{"checkpoint": name, "drop": replays.RequestDrop}, store.ErrNoSavepoint); err != nil {
		return fmt.Errorf("request deletion of checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestReplay implements store.Requester.
func (s *Store) RequestReplay(ctx context.Context, id, spec string) error {
	b := &builder{}
	put := b.query(
		"WITH "+b.countRequest(),
		"INSERT INTO sluicebox.replay (name, job, nth, wish, spec, state)",
		"SELECT "+b.arg("name", "text")+", "+b.arg("job", "text")+", told.n, "+b.arg("run", "text")+", "+b.arg("spec", "text")+", "+
			b.arg("waiting", "text")+" FROM told",
		"ON CONFLICT DO NOTHING",
	)

	err := s.writeRequest(ctx, put, map[string]any{
		"job": id, "run": string(store.DesiredRun), "spec": spec, "waiting": string(store.JobWaiting),
	}, store.ErrJobExists)
	if err != nil {
		return fmt.Errorf("request replay %s: %w", id, err)
	}
	return nil
}

// RequestJobState implements store.Requester.
func (s *Store) RequestJobState(ctx context.Context, id string, wish store.DesiredState) error {
	err := wish.Validate()
	if err == nil {
		b := &builder{}
		put := b.query(
			"WITH "+b.countRequest(),
			"UPDATE sluicebox.replay SET wish = CASE WHEN state = ANY ("+b.arg("ends", "text[]")+") THEN wish ELSE "+b.arg("wish", "text")+" END FROM told",
			"WHERE name = "+b.arg("name", "text")+" AND job = "+b.arg("job", "text"),
		)
		err = s.writeRequest(ctx, put, map[string]any{"job": id, "ends": replays.EndedStates(), "wish": string(wish)}, store.ErrNoJob)
	}
	if err != nil {
		return fmt.Errorf("request %[2]s of replay %[1]s: %[3]w", id, wish, err)
	}
	return nil
}

// countRequest returns the CTE that counts a request. It locks the relay's row until the
// transaction ends, so a reader of the count also sees the requests up to it.
func (b *builder) countRequest() string {
	return "told AS (\n  INSERT INTO sluicebox.wish AS w (name, n) VALUES (" + b.arg("name", "text") +
		", 1) ON CONFLICT (name) DO UPDATE SET n = w.n + 1 RETURNING n\n)"
}

// writeRequest runs a statement that must write one row. notFound is the error if it writes
// none.
func (s *Store) writeRequest(ctx context.Context, put *query, values map[string]any, notFound error) error {
	values["name"] = s.name
	var tag pgconn.CommandTag
	err := s.operator.do(ctx, func(ctx context.Context, sess *session) (err error) {
		tag, err = sess.conn.Exec(ctx, put.sql, put.args(values)...)
		return err
	})
	if err == nil && tag.RowsAffected() == 0 {
		return notFound
	}
	return explainOwn(err)
}

// replayWrite runs a statement that returns the number of leader rows and the number of
// rows written. It sanitizes the named texts first.
func (s *Store) replayWrite(ctx context.Context, write *query, values map[string]any, texts ...string) (n int, err error) {
	err = s.replay.do(ctx, func(ctx context.Context, sess *session) error {
		for _, name := range texts {
			values[name] = errortext.Sanitize(values[name].(string), 0, ascii(sess.conn))
		}
		n, err = readWritten(sess.conn.QueryRow(ctx, write.sql, write.args(values)...))
		return err
	})
	return n, explainOwn(err)
}

// ascii reports whether the database's encoding is not UTF-8. The server reports the
// encoding when a session begins.
func ascii(conn *pgx.Conn) bool { return conn.PgConn().ParameterStatus("server_encoding") != "UTF8" }

// countWritten ends a statement for replayWrite.
func countWritten(of string) string {
	return "SELECT (SELECT count(*) FROM leader), (SELECT count(*) FROM " + of + ")"
}

// readWritten reads the result of countWritten.
func readWritten(row pgx.Row) (n int, err error) {
	var leaders int
	if err := row.Scan(&leaders, &n); err != nil {
		return 0, err
	}
	if leaders == 0 {
		return 0, store.ErrNotLeader
	}
	return n, nil
}
