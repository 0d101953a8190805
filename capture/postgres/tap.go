package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
)

// Tap sends the rows that commit from now on, beside a relay that runs and
// without changing anything that it works with: it reads through a slot of its
// own, which the server drops with the session. begun is called once when it
// reads. It needs the publication and makes none.
//
// It may be called once, in place of Open and Run. Acknowledge what was received:
// the server keeps its log until then. It returns when the context ends (its
// error), or with any error of Open and Run; it does not connect again, since
// what is committed meanwhile would be left out. An *OldTransactionError passes
// once that transaction has ended.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	s.cfg.MayCreate, s.cfg.HeartbeatInterval = false, -1 // it writes nothing
	conn, p, err := s.openTap(ctx)
	if err != nil {
		closeSession(conn)
		return err
	}
	begun()
	_, err = s.read(ctx, conn, p, out)
	return s.explainColumns(ctx, err)
}

// openTap begins a stream from a temporary slot. The session is the caller's to
// close, also with an error.
func (s *Source) openTap(ctx context.Context) (conn *pgconn.PgConn, p part, err error) {
	err = s.control.do(ctx, func(c *pgx.Conn) error {
		sv, wrong, err := s.inspect(ctx, c)
		if err != nil {
			return err
		}
		conn, s.log, err = s.dial(ctx)
		if err := wrong.AddErr(err); err != nil {
			return err
		}
		if err := wrong.Err(); err != nil {
			return err
		}
		s.server = sv
		s.published, err = s.publishedNow(ctx, c, sv)
		return err
	})
	if err != nil {
		return conn, p, err
	}
	name := s.tapSlot()
	made, _, err := s.createSlot(ctx, conn, name, pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT",
	})
	if err != nil {
		return conn, p, s.explainFull(err)
	}
	if p.from, err = pglogrepl.ParseLSN(made.ConsistentPoint); err != nil {
		return conn, p, err
	}
	s.confirmed = p.from
	s.acked.Store(0)
	s.offered.Store(uint64(p.from))
	s.resume.Reset(position(p.from))
	p.timeout, err = s.begin(ctx, conn, name)
	return conn, p, err
}

// tapSlot is a name that no other slot of the server has: the relay's, so that an
// operator sees whose it is, and a random end. It needs no quoting.
func (s *Source) tapSlot() string {
	const random = 8 // of 32 letters: 2^40 names
	return s.cfg.Name + "_tap_" + strings.ToLower(rand.Text()[:random])
}

// explainFull says what to do when there is a slot for the relay and none for a
// tap.
func (s *Source) explainFull(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "53400" { // configuration_limit_exceeded
		return err
	}
	return noStream(fmt.Sprintf("all %d replication slots are taken, and a tap needs one for as long as it runs", s.server.maxSlots), slotsRemedy)
}
