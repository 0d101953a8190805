package mysql

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// statement gathers what is bound in a statement. Parameters have no numbers: they
// are to be named in the order in which the text has them.
type statement struct {
	args []any
	// unprepared: it is not kept prepared, so its lists may be of any length.
	unprepared bool
}

// arg binds a value and returns its place.
func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return "?"
}

// errStopIteration is what the reader of a statement's rows returns to be given no more.
var errStopIteration = errors.New("that is enough")

// maxKeys is the most keys that one statement names. MariaDB makes a table of a
// list of 1000 and more, and may then read all of the other one.
const maxKeys = 512

// placeholderCount is the number of places for n keys. Lists come in few lengths, so that the
// statements are few that the server keeps prepared; the last key fills them up.
func placeholderCount(n int) int {
	if n <= 1 {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// list binds keys as a list of places.
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

// idIn is the condition that the id of a row o is one of some keys, at most
// maxKeys, as the column compares them.
func (t *table) idIn(s *statement, keys []any) string {
	id := t.id()
	return "o." + Ident(id.name) + " IN " + s.list(id.placeholder(), keys)
}

// idExactlyIn is the same byte for byte. The first condition finds the rows, by the
// index; the second leaves out what the column's collation takes for the same.
func (t *table) idExactlyIn(s *statement, keys []any) string {
	id := t.id()
	found := t.idIn(s, keys)
	if id.comparesExactly() {
		return found
	}
	texts := make([]any, len(keys))
	for i, key := range keys {
		text, _ := key.(string) // of a text it is one
		texts[i] = []byte(text)
	}
	return found + " AND " + id.bytesOf() + " IN " + s.list("?", texts)
}

// idOneOf is exactly for any number of keys.
func (t *table) idOneOf(s *statement, keys []any) string {
	var parts []string
	for some := range slices.Chunk(keys, maxKeys) {
		parts = append(parts, "("+t.idExactlyIn(s, some)+")")
	}
	return "(" + strings.Join(parts, " OR ") + ")"
}

// lockedIDIn is the same for rows that the transaction has locked and found to have these
// very ids: where no second row can have one, there is nothing to leave out.
func (t *table) lockedIDIn(s *statement, keys []any) string {
	if t.single {
		return t.idIn(s, keys)
	}
	return t.idExactlyIn(s, keys)
}

// checkEpoch locks the leader row until the transaction ends, and returns
// store.ErrNotLeader unless it holds the epoch and this store took it. It comes behind
// the rows, for which a transaction may have to wait, so that nobody who is to lead
// waits for that. Lead waits for the lock, and whoever waits for Lead reads what it
// wrote, so no write of an old epoch lands after a new one was given out. The name
// tells two relays apart that two servers gave the same epoch.
func (s *Store) checkEpoch(ctx context.Context, c *conn, epoch store.Epoch) error {
	const check = "SELECT COUNT(*) FROM " + ownPrefix + "leader AS l WHERE l.name = ? AND l.epoch = ? AND l.holder = ? LOCK IN SHARE MODE"
	var leads int
	err := c.row(ctx, check, []any{s.name, int64(epoch), s.holder}, &leads)
	if err == nil && leads == 0 {
		return store.ErrNotLeader
	}
	return err
}

// runAsLeader runs write in a transaction of the leader of an epoch.
func (s *Store) runAsLeader(ctx context.Context, c *conn, epoch store.Epoch, write func() error) error {
	return c.tx(ctx, func() error {
		if err := write(); err != nil {
			return err
		}
		return s.checkEpoch(ctx, c, epoch)
	})
}
