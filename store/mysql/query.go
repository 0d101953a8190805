package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// ReadSettled implements store.StatusReader on the operator's session.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	states, err := s.readStates(ctx, s.operator, rows)
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}
	return outboxes.Settled(s.outboxes, rows, states), nil
}

// ReadStatuses implements store.RowStatusReader on the session for replays.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	states, err := s.readStates(ctx, s.replay, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}
	return outboxes.Statuses(states), nil
}

// ReadUntried implements store.UntriedReader, in one round trip. Nothing is known of the rows of a locked table.
func (s *Store) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", err)
	}
	untried := make([]bool, len(rows))
	err = s.claims.do(ctx, func(ctx context.Context, c *conn) error {
		call := &claim{Store: s, conn: c, rows: rows, answers: make([]store.ClaimAnswer, len(rows))}
		text, err := call.untriedScript(ctx, parts, untried)
		if err != nil || !text.returnsRows || !call.fitsPacket() {
			return errors.Join(err, c.rollback(ctx)) // ends the read transaction of the lookup
		}
		known, err := c.run(ctx, text)
		if !known {
			clear(untried)
		}
		if isLockTimeout(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", Explain(err))
	}
	return untried, nil
}

// untriedScript returns the script that marks untried rows.
func (c *claim) untriedScript(ctx context.Context, parts []*outboxes.Part, untried []bool) (*script, error) {
	s := newScript()
	for _, p := range parts {
		t, err := c.conn.table(ctx, p.Outbox)
		if err != nil {
			return nil, err
		}
		if !t.Layout.WritesClaims() {
			continue
		}
		plain, _ := c.partition(t, p)
		_ = plain.chunks(func(chunk *keyBatch) error { // never fails
			row := t.newRowReader()
			s.query("SELECT "+row.list()+"\nFROM "+t.from()+"\nWHERE "+t.idIn(&s.statement, chunk.keys)+" AND "+t.open(&s.statement)+" AND "+t.retryCount()+" = 0",
				func(rows *sql.Rows) error {
					err := row.scan(rows)
					if i, asked := p.FirstIndex[row.id.String]; err == nil && asked {
						untried[i] = true
					}
					return err
				})
			return nil
		})
	}
	return s, nil
}

// readStates reads the states of rows in one transaction. It reads a missing row again with a
// locking read, because the binlog is ahead of what statements see: the lock of an open
// insert shows that the row exists.
func (s *Store) readStates(ctx context.Context, session seat, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, err
	}
	r := &statesRead{rows, make([]store.RowStatus, len(rows))}
	return r.states, session.do(ctx, func(ctx context.Context, c *conn) (err error) {
		for range maxClaimTries {
			err = c.tx(ctx, func() error {
				for _, p := range parts {
					if err := r.readPart(ctx, c, p); err != nil {
						return err
					}
				}
				return nil
			})
			if !errors.Is(err, errRowChanged) {
				return err
			}
		}
		return err
	})
}

// statesRead reads the states of rows, and the content of COMPLETED ones.
type statesRead struct {
	rows   []store.ClaimRow
	states []store.RowStatus
}

// errTableLocked means that another session has locked the whole table, so no row of it
// can be locked.
var errTableLocked = errors.New("table is locked")

// readPart reads the rows of one outbox. If another session has locked the whole table, every
// row counts as unsettled. It returns errRowChanged if rows seem gone and the table was
// altered.
func (r *statesRead) readPart(ctx context.Context, c *conn, p *outboxes.Part) error {
	if p.MarkAbsent(r.states) {
		return nil
	}
	t, err := c.table(ctx, p.Outbox)
	if err != nil {
		return err
	}

	var plain, full []int
	for _, i := range p.Indexes {
		if p.WantsPayload(r.rows, i) {
			full = append(full, i)
		} else {
			plain = append(plain, i)
		}
	}
	gone, err := r.lookUp(ctx, c, t, p, plain, false)
	if err == nil {
		var more bool
		more, err = r.lookUp(ctx, c, t, p, full, true)
		gone = gone || more
	}
	if errors.Is(err, errTableLocked) {
		for _, i := range p.Indexes {
			r.set(i, store.RowUnsettled)
		}
		gone, err = false, nil
	}

	if err == nil && gone {
		var altered bool
		if altered, err = c.tableAltered(ctx, p.Outbox); altered {
			return errRowChanged
		}
	}
	p.CopyDuplicateStatuses(r.rows, r.states)
	return err
}

func (r *statesRead) set(i int, state store.RowState) { r.states[i] = store.RowStatus{State: state} }

// lookUp reads rows and reports whether any is gone. If several rows share an id, an
// unsettled one decides.
func (r *statesRead) lookUp(ctx context.Context, c *conn, t *table, p *outboxes.Part, at []int, payload bool) (gone bool, err error) {
	var all, absent keyBatch
	found := map[int]bool{}
	for _, i := range at {
		if key, valid := t.id().key(r.rows[i].ID); valid {
			all.add(i, key)
		} else {
			r.set(i, store.RowAbsent) // no row can have this id
			gone = true
		}
	}

	err = all.chunks(func(chunk *keyBatch) error {
		s, row := &statement{}, t.newRowReader()
		var state store.RowState
		row.add(t.state(s).RowState(), &state)
		if payload {
			row.addContent(func(content string) string {
				return "CASE WHEN " + t.state(s).Delivered() + " THEN " + content + " END"
			})
		}
		text := "SELECT " + row.list() + "\nFROM " + t.from() + "\nWHERE " + t.idIn(s, chunk.keys)
		return c.query(ctx, text, s.args, func(rows *sql.Rows) error {
			if err := row.scan(rows); err != nil {
				return err
			}
			i, asked := p.FirstIndex[row.id.String]
			if !asked || found[i] && state != store.RowUnsettled {
				return nil
			}
			r.set(i, state)
			if found[i] = true; payload && state == store.RowCompleted {
				r.states[i].Payload, r.states[i].Attributes = row.content()
			}
			return nil
		})
	})

	if isLockTimeout(err) { // a plain read waits only for a table lock
		err = errTableLocked
	}
	if err != nil {
		return false, err
	}

	for k, i := range all.at {
		if !found[i] {
			absent.add(i, all.keys[k])
		}
	}
	err = absent.chunks(func(chunk *keyBatch) error { return r.readMissing(ctx, c, t, p, chunk) })
	return gone || len(absent.at) > 0, err
}

// readMissing finds out which missing rows are really gone and which are being inserted. A
// read that meets a lock is split until the locked row is alone.
func (r *statesRead) readMissing(ctx context.Context, c *conn, t *table, p *outboxes.Part, chunk *keyBatch) error {
	present := map[int]bool{}
	s := &statement{}
	text := "SELECT " + t.id().textOf() + " FROM " + t.from() + "\nWHERE " + t.idIn(s, chunk.keys) + "\nFOR UPDATE NOWAIT"
	err := c.query(ctx, text, s.args, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		if i, asked := p.FirstIndex[id]; asked {
			present[i] = true // it appeared since the first read
		}
		return err
	})

	switch {
	case err == nil:
		for _, i := range chunk.at {
			if present[i] {
				r.set(i, store.RowUnsettled)
			} else {
				r.set(i, store.RowAbsent)
			}
		}
		return nil
	case !isLockTimeout(err):
		return err
	case c.server.tableLocked(err):
		return errTableLocked
	case len(chunk.at) == 1:
		r.set(chunk.at[0], store.RowUnsettled)
		return nil
	}

	half := len(chunk.at) / 2
	if err := r.readMissing(ctx, c, t, p, &keyBatch{chunk.at[:half], chunk.keys[:half]}); err != nil {
		return err
	}
	return r.readMissing(ctx, c, t, p, &keyBatch{chunk.at[half:], chunk.keys[half:]})
}

// statement collects the values bound in a statement. Placeholders have no numbers, so
// arg must be called in the order of the text.
type statement struct {
	args []any
	// unprepared is set if the statement is not prepared: then its lists may have any
	// length.
	unprepared bool
}

// arg binds a value and returns its placeholder.
func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return "?"
}

// errStopIteration is returned by a row reader to end the iteration.
var errStopIteration = errors.New("stop iteration")

// maxKeys is the maximum number of keys in one statement. MariaDB turns a list of 1000 or
// more into a table and may then read all of the outbox.
const maxKeys = 512

// placeholderCount returns the number of placeholders for n keys, a power of two. With
// few list lengths the server keeps few prepared statements; the last key fills the
// remaining placeholders.
func placeholderCount(n int) int {
	if n <= 1 {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// list binds keys as a list of placeholders.
func (s *statement) list(place string, keys []any) string {
	n := len(keys)
	if !s.unprepared {
		n = placeholderCount(n)
	}
	s.args = append(s.args, keys...)
	for range n - len(keys) {
		s.args = append(s.args, keys[len(keys)-1])
	}
	return "(" + strings.Repeat(place+", ", n-1) + place + ")"
}

// idIn returns the condition that the id of a row o is one of the keys, at most maxKeys,
// as the column compares them.
func (t *table) idIn(s *statement, keys []any) string {
	id := t.id()
	return "o." + Ident(id.name) + " IN " + s.list(id.placeholder(), keys)
}

// idExactlyIn is idIn with a byte-for-byte match. The first condition finds the rows
// through the index; the second excludes rows that only the column's collation treats as
// equal.
func (t *table) idExactlyIn(s *statement, keys []any) string {
	id := t.id()
	found := t.idIn(s, keys)
	if id.comparesExactly() {
		return found
	}
	texts := make([]any, len(keys))
	for i, key := range keys {
		text, _ := key.(string) // the key of a text column is a string
		texts[i] = []byte(text)
	}
	return found + " AND " + id.bytesOf() + " IN " + s.list("?", texts)
}

// idOneOf is idExactlyIn for any number of keys.
func (t *table) idOneOf(s *statement, keys []any) string {
	var parts []string
	for chunk := range slices.Chunk(keys, maxKeys) {
		parts = append(parts, "("+t.idExactlyIn(s, chunk)+")")
	}
	return "(" + strings.Join(parts, " OR ") + ")"
}

// lockedIDIn is idExactlyIn for rows that the transaction has locked and found to have
// exactly these ids. If the index is unique there is nothing to exclude.
func (t *table) lockedIDIn(s *statement, keys []any) string {
	if t.single {
		return t.idIn(s, keys)
	}
	return t.idExactlyIn(s, keys)
}

// checkEpoch locks the leader row until the transaction ends. It returns
// store.ErrNotLeader unless the row holds the epoch and this store's holder.
//
// It runs after the transaction has locked its rows, so that a new leader never waits for
// those locks. AcquireLeadership waits for the lock on the leader row, and a write that
// waits for AcquireLeadership reads the new row, so no write of an old epoch commits
// after a new one was issued. The holder distinguishes two relays that got the same epoch
// from different servers.
func (s *Store) checkEpoch(ctx context.Context, c *conn, epoch store.Epoch) error {
	const check = "SELECT COUNT(*) FROM " + ownPrefix + "leader AS l WHERE l.name = ? AND l.epoch = ? AND l.holder = ? LOCK IN SHARE MODE"
	var count int
	err := c.row(ctx, check, []any{s.name, int64(epoch), s.holder}, &count)
	if err == nil && count == 0 {
		return store.ErrNotLeader
	}
	return err
}

// runAsLeader runs write in a transaction of the epoch's leader. store.ErrNotLeader takes
// precedence over an answer of write.
func (s *Store) runAsLeader(ctx context.Context, c *conn, epoch store.Epoch, write func() error) error {
	return c.tx(ctx, func() error {
		err := write()
		if err != nil && !ledger.IsAnswer(err) && !errors.As(err, new(*store.RefusedError)) {
			return err
		}
		return cmp.Or(s.checkEpoch(ctx, c, epoch), err)
	})
}
