package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
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

	text        strings.Builder
	read        []func(*sql.Rows) error // of each statement that answers with rows
	returnsRows bool                    // the rows matter
	found       int                     // the rows that the last statement must find; 0 for any
}

func newScript() *script { return &script{statement: statement{unprepared: true}} }

// add adds a statement that has no rows. Its values are bound already.
func (s *script) add(text string) {
	s.text.WriteString(text)
	s.text.WriteString(";\n")
}

// query adds a statement that has rows, which read takes.
func (s *script) query(text string, read func(*sql.Rows) error) {
	s.add(text)
	s.read, s.returnsRows = append(s.read, read), true
}

// partVariable is the variable of the session that says which of several parts a script has
// reached. It outlives the script's failure.
const partVariable = "@sluicebox_part"

// markPart notes that the script comes to a part, if it has several.
func (s *script) markPart(part, of int) {
	if of < 2 {
		return
	}
	if s.found > 0 {
		s.require(s.foundAll(), "")
		s.found = 0
	}
	s.add("SET " + partVariable + " = " + strconv.Itoa(part))
}

// require adds a statement that fails unless a condition holds. What stands behind the
// condition may be empty.
func (s *script) require(condition, from string) {
	s.add("SELECT " + failUnless(condition) + from)
	s.read = append(s.read, func(*sql.Rows) error { return nil })
}

// write adds a statement that must find as many rows, which text makes.
func (s *script) write(rows int, text func() string) {
	if s.found > 0 {
		s.require(s.foundAll(), "")
	}
	s.add(text())
	s.found = rows
}

// foundAll is the condition that the statement before found its rows.
func (s *script) foundAll() string { return "ROW_COUNT() = " + s.arg(int64(s.found)) }

// failUnless is an expression whose value cannot be had where a condition is false:
// the largest BIGINT and one more is an error in every sql_mode
// (https://dev.mysql.com/doc/refman/9.0/en/out-of-range-and-overflow.html).
func failUnless(condition string) string {
	return "9223372036854775807 + (NOT (" + condition + "))"
}

// fence adds what checkEpoch does. It fails unless the epoch leads and the statement
// before found its rows.
func (s *script) fence(of *Store, epoch store.Epoch) {
	condition := "COUNT(*) = 1"
	if s.found > 0 {
		condition += " AND " + s.foundAll()
	}
	s.require(condition, " FROM "+ownPrefix+"leader AS l WHERE l.name = "+s.arg(of.name)+
		" AND l.epoch = "+s.arg(int64(epoch))+" AND l.holder = "+s.arg(of.holder)+" LOCK IN SHARE MODE")
}

// maxScriptBytes is the most bytes of a script, with room for what is escaped.
func (c *conn) maxScriptBytes() int { return c.server.packet / 4 }

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
	if isLockTimeout(err) {
		return false, err
	}
	return false, nil
}

// answers runs a script and reads what its statements say.
//
// The driver's own way to end with a context wakes a goroutine at each call, and waits
// for it at the end. A script is most of what a busy store does, so here the context
// closes the connection by itself, which is what the driver would do.
func (c *conn) answers(ctx context.Context, s *script) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.wire.Close() })
	err := c.read(context.WithoutCancel(ctx), s)
	if stop() {
		return err
	}
	c.broken = true // or about to be
	if err != nil {
		err = ctx.Err()
	}
	return err
}

// read runs a script. One that says nothing but whether it failed needs no reader.
func (c *conn) read(ctx context.Context, s *script) error {
	if !s.returnsRows {
		_, err := c.sqlConn.ExecContext(ctx, s.text.String(), s.args...)
		return err
	}
	rows, err := c.sqlConn.QueryContext(ctx, s.text.String(), s.args...)
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

// settleInOneTrip writes outcomes in one round trip, and reports whether it did: COMPLETED
// rows, each of which is there and open.
func (c *settling) settleInOneTrip(ctx context.Context, epoch store.Epoch) (bool, error) {
	size := 0
	for i := range c.outcomes {
		o := &c.outcomes[i]
		if o.Status != store.Completed || o.SpilledSeq != 0 {
			return false, nil
		}
		size += 3 * (len(o.ID) + 64)
	}
	if size >= c.conn.maxScriptBytes() {
		return false, nil
	}
	parts, err := c.parts(ctx)
	if err != nil {
		_ = c.conn.rollback(ctx) // of what was read for them
		return false, err
	}
	s := newScript()
	for _, p := range parts {
		set := columns.Outcome(&p.table.Layout, p.status)
		deletes := p.table.Layout.DeleteDelivered
		if p.round > 0 || !p.table.single || p.table.Layout.State == store.StateNone || len(set) == 0 && !deletes {
			return false, nil
		}
		for k := range p.keys {
			if p.keys[k] == nil {
				return false, nil
			}
		}
		_ = p.chunks(func(chunk *keyBatch) error { // which fails nowhere
			s.write(len(chunk.at), func() string { return c.outcomeText(&s.statement, p, chunk) })
			return nil
		})
	}
	s.fence(c.Store, epoch)
	done, err := c.conn.run(ctx, s)
	if err != nil && code(err) == 0 {
		c.lostSessionErr = err
	}
	if done {
		for i := range c.results {
			c.results[i] = store.Written
		}
	}
	return done, err
}
