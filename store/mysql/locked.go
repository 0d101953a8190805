package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// How long a statement waits for another session's lock. The servers count whole seconds.
const (
	// tableWait applies to a lock on a whole table: LOCK TABLES or a metadata lock.
	tableWait = time.Second
	// claimWait applies to a row that is claimed. It is longer than tableWait so that the
	// elapsed time shows which lock a claim waited for; both return the same error.
	claimWait = 2 * time.Second
	// outcomeWait applies to a row whose outcome is written.
	outcomeWait = time.Second
	// minTableWait separates the two: a shorter wait was for a table.
	minTableWait = claimWait - 500*time.Millisecond
)

// lockQuery returns the statement that takes the table lock which claims and outcomes of
// an outbox need. It reads no row.
func lockQuery(o *store.Outbox) string {
	text := "SELECT 1 FROM " + TableName(o) + " WHERE FALSE"
	if !o.Layout.LogOnly() {
		text += " FOR UPDATE"
	}
	return text
}

// tableLocked reports whether another session has locked the outbox's table. MariaDB
// answers at once, MySQL after tableWait.
func (c *conn) tableLocked(ctx context.Context, o *store.Outbox) (bool, error) {
	text := lockQuery(o)
	if c.server.mariadb && !o.Layout.LogOnly() {
		text += " NOWAIT"
	}
	err := c.query(ctx, text, nil, func(*sql.Rows) error { return nil })
	if isLockTimeout(err) {
		return true, nil
	}
	return false, err
}

// AwaitTable implements store.TableAwaiter.
func (s *Store) AwaitTable(ctx context.Context, outbox string) error {
	o, err := s.outbox(outbox)
	if err != nil {
		return err
	}
	return s.tableWaitSession.do(ctx, func(ctx context.Context, c *conn) error {
		err := c.tx(ctx, func() error { return c.query(ctx, lockQuery(o), nil, func(*sql.Rows) error { return nil }) })
		if isLockTimeout(err) {
			return &store.OutboxLockedError{Outbox: outbox, Err: err}
		}
		return Explain(err)
	})
}

// lockedPart returns the index of the part at which a claim met a table lock.
func (c *claim) lockedPart(ctx context.Context, parts []*outboxes.Part) (int, error) {
	at := c.partIndex
	if len(parts) == 1 {
		at = 0
	} else if at < 0 {
		if err := c.conn.row(ctx, "SELECT "+partVariable, nil, &at); err != nil {
			return 0, err
		}
	}
	if at < 0 || at >= len(parts) {
		return 0, fmt.Errorf("server returned part %d of %d", at, len(parts))
	}
	return at, nil
}

// lockedTables answers for the rows of locked tables and returns the other parts of the
// call.
func (c *claim) lockedTables(ctx context.Context, parts []*outboxes.Part) (free []*outboxes.Part, err error) {
	for _, p := range parts {
		locked, err := c.conn.tableLocked(ctx, p.Outbox)
		switch {
		case err != nil:
			return nil, err
		case locked:
			c.tableIsLocked(p)
		default:
			free = append(free, p)
		}
	}
	return free, nil
}

func (c *claim) tableIsLocked(p *outboxes.Part) {
	for _, i := range p.Indexes {
		c.answers[i] = store.ClaimAnswer{Result: store.TableLocked}
	}
}

// lockRowsSkipping is lockRows for a call that skips locked rows and tables.
func (c *settling) lockRowsSkipping(ctx context.Context) error {
	c.rows = map[store.Ref]rowState{}
	byOutbox := c.keyBatches()
	for _, name := range c.outboxes.Names() {
		batch, t := byOutbox[name], c.conn.tables[name]
		if batch == nil || t.Layout.LogOnly() {
			continue
		}

		locked, err := c.conn.tableLocked(ctx, t.Outbox)
		switch {
		case err != nil:
			return err
		case locked:
			for _, i := range batch.at {
				c.rows[c.outcomes[i].Ref] = rowTableLocked
			}
			continue
		}

		if err := batch.chunks(func(chunk *keyBatch) error { return c.lockFreeChunk(ctx, t, chunk) }); err != nil {
			return err
		}
	}

	return nil
}

// lockFreeChunk locks the rows that are free and records the state of the others. A
// missing row may be an insert that has not committed: a NOWAIT read finds that out.
func (c *settling) lockFreeChunk(ctx context.Context, t *table, chunk *keyBatch) error {
	if err := c.lockAmong(ctx, t, chunk.keys, " FOR UPDATE SKIP LOCKED", false); err != nil {
		return err
	}
	unknown := c.unknownRows(chunk)
	if len(unknown.at) == 0 {
		return nil
	}

	if err := c.lockAmong(ctx, t, unknown.keys, "", true); err != nil {
		return err
	}
	if unknown = c.unknownRows(unknown); len(unknown.at) == 0 {
		return nil
	}

	err := c.lockAmong(ctx, t, unknown.keys, " FOR UPDATE NOWAIT", false)
	if isLockTimeout(err) {
		for _, i := range c.unknownRows(unknown).at {
			c.rows[c.outcomes[i].Ref] = rowLocked
		}
		return nil
	}

	return err
}

// unknownRows returns the rows whose state is not known yet.
func (c *settling) unknownRows(batch *keyBatch) *keyBatch {
	unknown := &keyBatch{}
	for k, i := range batch.at {
		if _, known := c.rows[c.outcomes[i].Ref]; !known {
			unknown.add(i, batch.keys[k])
		}
	}
	return unknown
}
