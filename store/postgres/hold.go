package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// LoadHolds implements store.Holds.
func (s *Store) LoadHolds(ctx context.Context) ([]store.Hold, error) {
	var holds []store.Hold
	err := s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		holds = nil
		for _, name := range s.outboxes.Names() {
			t, err := sess.table(ctx, s.outboxes.Lookup(name))
			if err != nil {
				return err
			}
			load := holdsQuery(t)
			rows, err := sess.conn.Query(ctx, load.sql, load.args(t.values(s.name))...)
			if err != nil {
				return err
			}
			of, err := pgx.CollectRows(rows, scanHold)
			if err != nil {
				return err
			}
			for i := range of {
				of[i].Lane.Outbox = name
			}
			holds = append(holds, of...)
		}

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load holds: %w", explainOwn(err))
	}
	return holds, nil
}

// holdsQuery returns the statement that reads the holds of an outbox. A lane stays
// blocked as long as its row is FAILED.
func holdsQuery(t *table) *query {
	b := &builder{}
	c := &t.Layout.Columns
	return b.query(
		"SELECT h.hold, h.kind, h.message_group, h.id, h.retry_count, h.reason, h.since",
		"FROM sluicebox.hold h WHERE h.name = "+b.arg("name", "text")+" AND h.outbox = "+b.arg("outbox", "text"),
		// The id of a pause is empty, which not every type accepts. OFFSET 0 keeps the
		// subquery a lookup by id: hashed, it would read all FAILED rows.
		"AND CASE WHEN h.hold = "+b.arg("blocked", "text")+" THEN EXISTS (",
		"  SELECT FROM "+TableName(t.Outbox)+" AS o WHERE o."+Ident(c.ID)+" = convert_from(h.id, 'UTF8')::"+t.mustColumn(c.ID).typ+" AND "+t.failed(b)+" IS TRUE OFFSET 0",
		") ELSE true END",
	)
}

func scanHold(row pgx.CollectableRow) (store.Hold, error) {
	var h store.Hold
	var word string
	var id, kind, group []byte
	if err := row.Scan(&word, &kind, &group, &id, &h.RetryCount, &h.Reason, &h.Since); err != nil {
		return h, err
	}
	h.Lane.Kind, h.Lane.Group, h.ID, h.Since = string(kind), groupOf(group), string(id), h.Since.UTC()
	var err error
	h.Kind, err = store.ParseHoldKind(word)
	return h, err
}

// Hold implements store.Holds. The reason is sanitized like an error text of Settle, and
// the time is truncated to microseconds.
func (s *Store) Hold(ctx context.Context, epoch store.Epoch, h store.Hold) error {
	o, err := s.outboxes.FindValid(h.Lane.Outbox, &h)
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}

	err = s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		t, err := sess.table(ctx, o)
		if err != nil {
			return err
		}
		return s.writeHold(ctx, sess.conn, epoch, t, &h)
	})
	if err != nil {
		return fmt.Errorf("hold lane %s: %w", h.Lane, asRefused(explainOwn(err)))
	}
	return nil
}

func (s *Store) writeHold(ctx context.Context, conn *pgx.Conn, epoch store.Epoch, t *table, h *store.Hold) error {
	b := &builder{}
	put := b.query(
		"WITH "+b.leader(),
		"INSERT INTO sluicebox.hold AS h (name, outbox, lane, hold, kind, message_group, id, retry_count, reason, since)",
		"SELECT "+b.arg("name", "text")+", "+b.arg("outbox", "text")+", "+b.arg("lane", "bytea")+", "+b.arg("hold", "text")+", "+
			b.arg("kind", "bytea")+", "+b.arg("group", "bytea")+", "+b.arg("id", "bytea")+", "+b.arg("retries", "bigint")+", "+
			b.arg("reason", "text")+", "+b.arg("since", "timestamptz")+" FROM leader",
		replaceHold,
	)

	values := s.fenced(epoch, t.values(s.name))
	lane := h.Lane.Hash()
	values["lane"], values["hold"] = lane[:], h.Kind.String()
	values["kind"], values["group"], values["id"] = []byte(h.Lane.Kind), groupBytes(h.Lane.Group), []byte(h.ID)
	values["retries"], values["reason"] = int64(h.RetryCount), errortext.Sanitize(h.Reason, 0, t.ascii)
	values["since"] = h.Since.Truncate(time.Microsecond)
	tag, err := conn.Exec(ctx, put.sql, put.args(values)...)
	if err == nil && tag.RowsAffected() == 0 {
		return store.ErrNotLeader
	}
	return err
}

// replaceHold ends an INSERT of holds.
const replaceHold = `ON CONFLICT (name, outbox, lane, hold) DO UPDATE SET kind = excluded.kind, message_group = excluded.message_group,
  id = excluded.id, retry_count = excluded.retry_count, reason = excluded.reason, since = excluded.since`

// groupBytes returns a group as the relay's tables store it, NULL for none.
func groupBytes(g store.Group) []byte {
	if !g.Valid {
		return nil
	}
	return append([]byte{}, g.Name...)
}

func groupOf(name []byte) store.Group { return store.Group{Name: string(name), Valid: name != nil} }

// Release implements store.Holds.
func (s *Store) Release(ctx context.Context, epoch store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	if _, err := s.outbox(lane.Outbox); err != nil {
		return fmt.Errorf("release lane %s: %w", lane, err)
	}

	err := s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		b := &builder{}
		del := b.query(
			"WITH "+b.leader()+", gone AS (",
			"  DELETE FROM sluicebox.hold WHERE name = "+b.arg("name", "text")+" AND outbox = "+b.arg("outbox", "text"),
			"  AND lane = "+b.arg("lane", "bytea")+" AND hold = "+b.arg("hold", "text")+" AND EXISTS (SELECT FROM leader)",
			") SELECT count(*) FROM leader",
		)

		hash := lane.Hash()
		var leaders int
		err := sess.conn.QueryRow(ctx, del.sql, del.args(s.fenced(epoch, map[string]any{
			"outbox": lane.Outbox, "lane": hash[:], "hold": kind.String(),
		}))...).Scan(&leaders)
		if err == nil && leaders == 0 {
			return store.ErrNotLeader
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("release lane %s: %w", lane, explainOwn(err))
	}
	return nil
}

// requestsBlock reports whether an outcome blocks its lane.
func requestsBlock(o *store.Outcome) bool { return o.Block != nil }

// queueBlock adds the statement that records the holds of the part's outcomes. It runs
// with every attempt of the call, so that the last hold of a lane wins even if an earlier
// outcome had to be written again.
func (p *outboxPart) queueBlock(batch *pgx.Batch, values map[string]any, outcomes []store.Outcome) {
	t := p.table
	if t.block == nil {
		t.block = blockQuery(t)
	}

	n := len(p.at)
	ids, texts, lanes, kinds, groups := make([]string, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	retries, reasons, times := make([]int64, n), make([]string, n), make([]time.Time, n)
	for k, i := range p.at {
		h := outcomes[i].Hold()
		lane := h.Lane.Hash()
		ids[k], texts[k], lanes[k], kinds[k], groups[k] = h.ID, []byte(h.ID), lane[:], []byte(h.Lane.Kind), groupBytes(h.Lane.Group)
		retries[k], reasons[k] = int64(h.RetryCount), errortext.Sanitize(h.Reason, 0, t.ascii)
		times[k] = h.Since.Truncate(time.Microsecond)
	}

	values["ids"], values["texts"], values["lanes"], values["kinds"], values["groups"] = arrayLiteral(ids), texts, lanes, kinds, groups
	values["retries"], values["reasons"], values["times"] = retries, reasons, times
	batch.Queue(t.block.sql, t.block.args(values)...)
}

// blockQuery returns the statement that records holds for the rows that are FAILED. It
// runs after the outcomes in their transaction and sees their writes. It returns the
// epoch, NULL if it is stale.
func blockQuery(t *table) *query {
	b := &builder{}
	id := t.mustColumn(t.Layout.Columns.ID)
	return b.query(
		"WITH "+b.leader()+",",
		"want AS MATERIALIZED (",
		"  SELECT * FROM unnest("+b.arg("ids", id.typ+"[]")+", "+b.arg("texts", "bytea[]")+", "+b.arg("lanes", "bytea[]")+", "+
			b.arg("kinds", "bytea[]")+", "+b.arg("groups", "bytea[]")+", "+b.arg("retries", "bigint[]")+", "+
			b.arg("reasons", "text[]")+", "+b.arg("times", "timestamptz[]"),
		"  ) WITH ORDINALITY AS u(id, text, lane, kind, message_group, retry, reason, since, ord)",
		"),",
		"held AS (",
		"  INSERT INTO sluicebox.hold AS h (name, outbox, lane, hold, kind, message_group, id, retry_count, reason, since)",
		"  SELECT DISTINCT ON (w.lane) "+b.arg("name", "text")+", "+b.arg("outbox", "text")+", w.lane, "+b.arg("blocked", "text")+",",
		"    w.kind, w.message_group, w.text, w.retry, w.reason, w.since",
		"  FROM leader CROSS JOIN want w CROSS JOIN LATERAL (",
		"    SELECT FROM "+TableName(t.Outbox)+" AS o WHERE o."+Ident(id.name)+" = w.id AND "+t.failed(b)+" IS TRUE OFFSET 0",
		"  ) o",
		"  ORDER BY w.lane, w.ord DESC",
		"  "+replaceHold,
		")",
		"SELECT (SELECT epoch FROM leader)",
	)
}
