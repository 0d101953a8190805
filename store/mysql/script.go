package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// A script is a whole transaction in one packet and therefore one round trip; most claims
// and outcomes are scripts. The server runs the statements in order and stops at the
// first that fails (CLIENT_MULTI_STATEMENTS,
// https://dev.mysql.com/doc/c-api/9.0/en/c-api-multiple-queries.html). Each condition
// that must hold before the COMMIT is therefore a statement that fails if it does not. A
// script that failed is rolled back, and the step-by-step path repeats its work and finds
// the reason.
//
// The driver binds the values as literals in the text. That is safe because the session's
// charset is UTF-8 and its sql_mode is known.
type script struct {
	statement

	text        strings.Builder
	read        []func(*sql.Rows) error // for each statement that returns rows
	returnsRows bool                    // the rows matter
	found       int                     // rows that the last statement must match; 0 for any number
}

func newScript() *script { return &script{statement: statement{unprepared: true}} }

// add adds a statement without rows. Its values are already bound.
func (s *script) add(text string) {
	s.text.WriteString(text)
	s.text.WriteString(";\n")
}

// query adds a statement with rows, which read processes.
func (s *script) query(text string, read func(*sql.Rows) error) {
	s.add(text)
	s.read, s.returnsRows = append(s.read, read), true
}

// partVariable is the session variable that holds the part a script has reached. It
// survives a failure of the script.
const partVariable = "@sluicebox_part"

// markPart records that the script starts a part, if it has several.
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

// require adds a statement that fails unless a condition holds. from is the rest of the
// SELECT and may be empty.
func (s *script) require(condition, from string) {
	s.add("SELECT " + failUnless(condition) + from)
	s.read = append(s.read, func(*sql.Rows) error { return nil })
}

// write adds the statement that text returns, which must match exactly rows rows.
func (s *script) write(rows int, text func() string) {
	if s.found > 0 {
		s.require(s.foundAll(), "")
	}
	s.add(text())
	s.found = rows
}

// foundAll returns the condition that the previous statement matched all its rows.
func (s *script) foundAll() string { return "ROW_COUNT() = " + s.arg(int64(s.found)) }

// failUnless returns an expression that raises an error if a condition is false: the
// largest BIGINT plus one overflows in every sql_mode
// (https://dev.mysql.com/doc/refman/9.0/en/out-of-range-and-overflow.html).
func failUnless(condition string) string {
	return "9223372036854775807 + (NOT (" + condition + "))"
}

// fence adds the check of checkEpoch. It fails unless the epoch is the leader's and the
// previous statement matched all its rows.
func (s *script) fence(of *Store, epoch store.Epoch) {
	condition := "COUNT(*) = 1"
	if s.found > 0 {
		condition += " AND " + s.foundAll()
	}
	s.require(condition, " FROM "+ownPrefix+"leader AS l WHERE l.name = "+s.arg(of.name)+
		" AND l.epoch = "+s.arg(int64(epoch))+" AND l.holder = "+s.arg(of.holder)+" LOCK IN SHARE MODE")
}

// maxScriptBytes is the maximum size of a script, with room for escaped characters.
func (c *conn) maxScriptBytes() int { return c.server.packet / 4 }

// run runs a script, COMMIT included.
//
//   - true: the script was committed.
//   - false without an error: it failed and was rolled back, so the caller repeats its
//     work step by step.
//   - an error: the step-by-step path would fail as well, for example after a lock
//     timeout. If the error has no server code, it is unknown whether the COMMIT took
//     effect.
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

	if rollbackErr := c.rollback(ctx); rollbackErr != nil {
		return false, rollbackErr
	}
	if isLockTimeout(err) {
		return false, err
	}

	return false, nil
}

// answers runs a script and reads the results of its statements.
//
// The driver's own context handling wakes a goroutine at the start of each call and waits
// for it at the end. Scripts are most of a busy store's work, so here the context closes
// the connection directly, which is what the driver would do.
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

// read runs a script. If no rows matter, Exec is enough.
func (c *conn) read(ctx context.Context, s *script) error {
	if !s.returnsRows {
		_, err := c.sqlConn.ExecContext(ctx, s.text.String(), s.args...)
		return err
	}

	rows, err := c.sqlConn.QueryContext(ctx, s.text.String(), s.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err returns its error
	for _, read := range s.read {
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		rows.NextResultSet() // the last call reads the reply to the COMMIT
	}

	return rows.Err()
}

// settleInOneTrip writes outcomes in one round trip and reports whether it did. It
// applies if all are COMPLETED and every row exists and is unsettled.
func (c *settling) settleInOneTrip(ctx context.Context, epoch store.Epoch) (bool, error) {
	size := 0
	for i := range c.outcomes {
		o := &c.outcomes[i]
		if o.Status != store.Completed || o.SpilledSeq != 0 || o.Leg != nil {
			return false, nil
		}
		size += 3 * (len(o.ID) + 64)
		for _, r := range o.Receipt {
			size += len(o.ID) + 64 + 2*len(r.Value)
		}
	}

	if size >= c.conn.maxScriptBytes() {
		return false, nil
	}
	parts, err := c.parts(ctx)
	if err != nil {
		_ = c.conn.rollback(ctx) // ends the read transaction of the lookups
		return false, err
	}

	s := newScript()
	for _, p := range parts {
		set := p.table.Outcome(p.status)
		deletes := p.table.Layout.DeleteDelivered
		if p.round > 0 || !p.table.single || p.table.Layout.LogOnly() || len(set) == 0 && !deletes {
			return false, nil
		}
		for k := range p.keys {
			if p.keys[k] == nil {
				return false, nil
			}
		}
		_ = p.chunksOf(p.chunkSize(), func(chunk *keyBatch) error { // never fails
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
