package mysql

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

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

// runAsLeader runs write in a transaction of the epoch's leader.
func (s *Store) runAsLeader(ctx context.Context, c *conn, epoch store.Epoch, write func() error) error {
	return c.tx(ctx, func() error {
		if err := write(); err != nil {
			return err
		}
		return s.checkEpoch(ctx, c, epoch)
	})
}
