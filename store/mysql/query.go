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

// ReadSettled implements store.StatusReader on the operator's session. It reads a missing
// row again with a locking read, because the binlog is ahead of what statements see: the
// lock of an open insert shows that the row exists.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", err)
	}

	settled := make([]bool, len(rows))
	err = runLookups(ctx, s.operator, parts, func(ctx context.Context, c *conn, p *outboxes.Part) error {
		for _, i := range p.Indexes {
			settled[i] = false
		}
		if p.Outbox.Layout.State == store.StateNone {
			return nil // a table without states has no settled rows
		}
		return lookUpPart(ctx, c, p, func(t *table) []rowLookup { return []rowLookup{t.settledLookup(p, rows, settled)} })
	})
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}

	return settled, nil
}

// settledLookup reports which rows are settled. If an id appears twice, the second
// occurrence reports nothing.
func (t *table) settledLookup(p *outboxes.Part, rows []store.ClaimRow, settled []bool) rowLookup {
	var open bool
	return rowLookup{
		at: p.Indexes, rows: rows,
		columns: func(s *statement) string { return t.open(s) + " IS TRUE" },
		into:    []any{&open},
		found:   func(i int, again bool) { settled[i] = !open && (settled[i] || !again) },
		missing: func(i int) { settled[i] = true },
		unknown: func(i int) { settled[i] = false },
	}
}

// rowLookup is a query about rows of one outbox, by their indexes in a call.
type rowLookup struct {
	at   []int
	rows []store.ClaimRow
	// columns returns the select list after the id; into receives its values.
	columns func(*statement) string
	into    []any
	// found receives each row that was read; again is set if it is another row with the
	// same id. missing and unknown receive the other rows.
	found            func(i int, again bool)
	missing, unknown func(i int)
}

// errTableLocked means that another session has locked the whole table, so no row of it
// can be locked.
var errTableLocked = errors.New("table is locked")

// runLookups runs at for each outbox, all in one transaction.
func runLookups(ctx context.Context, session *link, parts []*outboxes.Part, lookUp func(context.Context, *conn, *outboxes.Part) error) error {
	return session.do(ctx, func(ctx context.Context, c *conn) (err error) {
		for range maxClaimTries {
			err = c.tx(ctx, func() error {
				for _, p := range parts {
					if err := lookUp(ctx, c, p); err != nil {
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

// lookUpPart looks up the rows of one outbox. If another session has locked the whole
// table, every row is unknown. It returns errRowChanged if rows seem gone and the table
// was altered.
func lookUpPart(ctx context.Context, c *conn, p *outboxes.Part, lookups func(*table) []rowLookup) error {
	t, err := c.table(ctx, p.Outbox)
	if err != nil {
		return err
	}

	all, gone := lookups(t), false
	for k := range all {
		anyMissing, err := t.lookUp(ctx, c, p, &all[k])
		if errors.Is(err, errTableLocked) {
			for k := range all {
				for _, i := range all[k].at {
					all[k].unknown(i)
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
		gone = gone || anyMissing
	}

	if !gone {
		return nil
	}
	altered, err := c.tableAltered(ctx, p.Outbox)
	if altered {
		return errRowChanged
	}

	return err
}

// lookUp looks up rows and reports whether any is gone.
func (t *table) lookUp(ctx context.Context, c *conn, p *outboxes.Part, l *rowLookup) (gone bool, err error) {
	var all, absent keyBatch
	found := map[int]bool{}
	for _, i := range l.at {
		if key, valid := t.id().key(l.rows[i].ID); valid {
			all.add(i, key)
		} else {
			l.missing(i) // no row can have this id
			gone = true
		}
	}

	err = all.chunks(func(chunk *keyBatch) error {
		s := &statement{}
		text := "SELECT " + t.id().textOf() + ", " + l.columns(s) + "\nFROM " + t.from() + "\nWHERE " + t.idIn(s, chunk.keys)
		return c.query(ctx, text, s.args, func(rows *sql.Rows) error {
			var id string
			if err := rows.Scan(append([]any{&id}, l.into...)...); err != nil {
				return err
			}
			if i, asked := p.FirstIndex[id]; asked {
				l.found(i, found[i])
				found[i] = true
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

	err = absent.chunks(func(chunk *keyBatch) error { return t.reportMissing(ctx, c, p, chunk, l) })
	return gone || len(absent.at) > 0, err
}

// reportMissing finds out which missing rows are really gone and which are being
// inserted. A read that meets a lock is split until the locked row is alone.
func (t *table) reportMissing(ctx context.Context, c *conn, p *outboxes.Part, chunk *keyBatch, l *rowLookup) error {
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
				l.unknown(i)
			} else {
				l.missing(i)
			}
		}
		return nil
	case !isLockTimeout(err):
		return err
	case c.server.tableLocked(err):
		return errTableLocked
	case len(chunk.at) == 1:
		l.unknown(chunk.at[0])
		return nil
	}

	half := len(chunk.at) / 2
	if err := t.reportMissing(ctx, c, p, &keyBatch{chunk.at[:half], chunk.keys[:half]}, l); err != nil {
		return err
	}
	return t.reportMissing(ctx, c, p, &keyBatch{chunk.at[half:], chunk.keys[half:]}, l)
}

// ReadStatuses implements store.RowStatusReader on the session for replays. It reads rows as
// ReadSettled does.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", err)
	}

	states := make([]store.RowStatus, len(rows))
	err = runLookups(ctx, s.replay, parts, func(ctx context.Context, c *conn, p *outboxes.Part) error {
		if p.MarkAbsent(states) {
			return nil
		}
		err := lookUpPart(ctx, c, p, func(t *table) []rowLookup {
			var plain, full []int
			for _, i := range p.Indexes {
				if p.WantsPayload(rows, i) {
					full = append(full, i)
				} else {
					plain = append(plain, i)
				}
			}
			return []rowLookup{t.statusLookup(plain, rows, states, false), t.statusLookup(full, rows, states, true)}
		})
		p.CopyDuplicateStatuses(rows, states)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}

	return states, nil
}

// statusLookup reads the statuses of rows, and the payloads of COMPLETED ones. If several
// rows share an id, an unsettled one decides.
func (t *table) statusLookup(at []int, rows []store.ClaimRow, states []store.RowStatus, payload bool) rowLookup {
	var read store.RowStatus
	return rowLookup{
		at: at, rows: rows,
		columns: func(s *statement) string {
			text := fmt.Sprintf("CASE WHEN %s IS TRUE THEN %d", "("+t.delivered(s)+")", store.RowCompleted)
			text += fmt.Sprintf(" WHEN %s IS TRUE THEN %d ELSE %d END, ", t.failed(s), store.RowFailed, store.RowUnsettled)
			if !payload {
				return text + "NULL"
			}
			return text + "CASE WHEN " + t.delivered(s) + " THEN " + t.payload() + " END"
		},
		into: []any{&read.State, &read.Payload},
		found: func(i int, again bool) {
			if !again || read.State == store.RowUnsettled {
				states[i] = read
			}
		},
		missing: func(i int) { states[i] = store.RowStatus{State: store.RowAbsent} },
		unknown: func(i int) { states[i] = store.RowStatus{State: store.RowUnsettled} },
	}
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
