package mysql

import (
	"context"
	"database/sql"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/byoutbox"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// A script is a whole transaction in one packet, and so in one round trip: what a
// claim and an outcome are as a rule. The server runs its statements one after the
// other and stops at the first that fails (CLIENT_MULTI_STATEMENTS,
// https://dev.mysql.com/doc/c-api/9.0/en/c-api-multiple-queries.html). So each thing
// that must hold before the COMMIT is a statement that fails where it does not hold.
// A script that failed is taken back, and the same is done step by step, which tells
// why.
//
// Values are bound by the driver, which puts them into the text as literals: the
// session's characters are UTF-8 and its sql_mode is known.
type script struct {
	statement

	text strings.Builder
	read []func(*sql.Rows) error // of each statement that answers with rows
}

func newScript() *script { return &script{statement: statement{once: true}} }

// add adds a statement. Its values are bound already. Read takes its rows, if it has
// any.
func (s *script) add(text string, read func(*sql.Rows) error) {
	s.text.WriteString(text)
	s.text.WriteString(";\n")
	if read != nil {
		s.read = append(s.read, read)
	}
}

// failUnless is an expression whose value cannot be had where a condition is false:
// the largest BIGINT and one more is an error in every sql_mode
// (https://dev.mysql.com/doc/refman/9.0/en/out-of-range-and-overflow.html).
func failUnless(condition string) string {
	return "9223372036854775807 + (NOT (" + condition + "))"
}

// fence adds what checkEpoch does. It fails unless the epoch leads, and unless the
// statement before found as many rows, if that is said.
func (s *script) fence(of *Store, epoch store.Epoch, found int) {
	condition := "COUNT(*) = 1"
	if found > 0 {
		condition += " AND ROW_COUNT() = " + s.arg(int64(found))
	}
	s.add("SELECT "+failUnless(condition)+" FROM "+ownPrefix+"leader AS l WHERE l.name = "+s.arg(of.name)+
		" AND l.epoch = "+s.arg(int64(epoch))+" AND l.holder = "+s.arg(of.holder)+" LOCK IN SHARE MODE", passOver)
}

func passOver(*sql.Rows) error { return nil }

// most is the most bytes of a script, with room for what is escaped.
func (c *conn) most() int { return c.server.packet / 4 }

// run runs a script, its COMMIT included. False says that it failed, and that what it
// did was taken back: the caller does the same step by step. The error is one that
// comes again there, a lock that was waited for among them. One without a server's
// number leaves open whether the COMMIT was done.
func (c *conn) run(ctx context.Context, s *script) (bool, error) {
	s.text.WriteString("COMMIT")
	err := c.answers(ctx, s)
	if err == nil {
		return true, nil
	}
	if code(err) == 0 {
		c.broken = true
		return false, err
	}
	if taken := c.rollback(ctx); taken != nil {
		return false, taken
	}
	if lockedOut(err) {
		return false, err
	}
	return false, nil
}

// answers runs a script and reads what its statements say.
func (c *conn) answers(ctx context.Context, s *script) error {
	rows, err := c.on.QueryContext(ctx, s.text.String(), s.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // its error is that of rows.Err
	for _, read := range s.read {
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		rows.NextResultSet() // the last one goes on to the answer of the COMMIT
	}
	return rows.Err()
}

// short reports whether a claim's ids, some times in a statement, fit into a packet.
func (c *claim) short() bool {
	const times, each = 3, 64
	size := 0
	for i := range c.rows {
		size += times * (len(c.rows[i].ID) + each)
	}
	return size < c.conn.most()
}

// atOnce claims in one round trip, and reports whether it did. It answers as the way
// step by step does; rows that seem gone are left to that.
func (c *claim) atOnce(ctx context.Context, epoch store.Epoch, parts []*byoutbox.Part) (bool, error) {
	if c.hurry || c.takeover != 0 || !c.short() {
		return false, nil
	}
	clear(c.answers)
	s := newScript()
	var updates []func()
	for _, p := range parts {
		t, err := c.conn.table(ctx, p.Outbox)
		if err != nil {
			_ = c.conn.rollback(ctx) // of what was read for it
			return false, err
		}
		if !t.Layout.WritesClaims() {
			return false, nil
		}
		plain, full := c.sort(t, p)
		for _, of := range []struct {
			*lookup
			payload bool
		}{{plain, false}, {full, true}} {
			_ = of.chunks(func(chunk *lookup) error { // which fails nowhere
				for _, i := range chunk.at {
					c.answers[i].Result = store.Gone
				}
				s.add(t.lockText(&s.statement, chunk.keys, of.payload, false), func(rows *sql.Rows) error { return c.read(rows, t, p) })
				updates = append(updates, func() { s.add(c.takeText(&s.statement, t, chunk.keys, false), nil) })
				return nil
			})
		}
	}
	if len(updates) == 0 {
		return false, nil
	}
	s.fence(c.Store, epoch, 0)
	for _, update := range updates {
		update()
	}
	done, err := c.conn.run(ctx, s)
	if err != nil || !done {
		return false, err
	}
	for i := range c.answers {
		if c.answers[i].Result == store.Gone {
			return false, nil
		}
	}
	return true, nil
}

// atOnce writes outcomes in one round trip, and reports whether it did: COMPLETED
// rows, each of which is there and open.
func (c *settling) atOnce(ctx context.Context, epoch store.Epoch) (bool, error) {
	size := 0
	for i := range c.outcomes {
		o := &c.outcomes[i]
		if o.Status != store.Completed || o.Parked != 0 {
			return false, nil
		}
		size += 3 * (len(o.ID) + 64)
	}
	if size >= c.conn.most() {
		return false, nil
	}
	parts, err := c.parts(ctx)
	if err != nil {
		_ = c.conn.rollback(ctx) // of what was read for them
		return false, err
	}
	s, found := newScript(), 0
	for _, p := range parts {
		set := columns.Outcome(&p.table.Layout, p.status)
		deletes := p.table.Layout.DeleteDelivered
		if p.turn > 0 || p.table.Layout.State == store.StateNone || len(set) == 0 && !deletes {
			return false, nil
		}
		for k := range p.keys {
			if p.keys[k] == nil {
				return false, nil
			}
		}
		_ = p.chunks(func(chunk *lookup) error { // which fails nowhere
			if found > 0 {
				s.add("SELECT "+failUnless("ROW_COUNT() = "+s.arg(int64(found))), passOver)
			}
			s.add(c.outcomeText(&s.statement, p, chunk), nil)
			found = len(chunk.at)
			return nil
		})
	}
	s.fence(c.Store, epoch, found)
	done, err := c.conn.run(ctx, s)
	if err != nil && code(err) == 0 {
		c.unsure = err
	}
	if done {
		for i := range c.results {
			c.results[i] = store.Written
		}
	}
	return done, err
}
