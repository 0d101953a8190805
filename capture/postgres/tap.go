package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
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
	_, err = s.readStream(ctx, conn, p, out)
	return s.explainMissingColumns(ctx, err)
}

// openTap begins a stream from a temporary slot. The session is the caller's to
// close, also with an error.
func (s *Source) openTap(ctx context.Context) (conn *pgconn.PgConn, p streamRange, err error) {
	b, err := s.openSideSession(ctx)
	if err == nil {
		err = b.faults.Err()
	}
	if err != nil {
		return b.conn, p, err
	}
	s.system, s.server, s.publicationState = b.system, b.server, b.publicationState
	name := s.tempSlotName("tap")
	made, _, err := s.createSlot(ctx, b.conn, name, pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT",
	})
	if err != nil {
		return b.conn, p, explainNoFreeSlot(err, "a tap needs one for as long as it runs")
	}
	if p.from, err = pglogrepl.ParseLSN(made.ConsistentPoint); err != nil {
		return b.conn, p, err
	}
	s.confirmed = p.from
	s.acked.Store(0)
	s.offered.Store(uint64(p.from))
	s.resume.Reset(formatLSN(p.from))
	p.timeout, err = s.beginStream(ctx, b.conn, name, 0)
	return b.conn, p, err
}

// sideSession is a replication session beside the relay's, and what was found with it.
type sideSession struct {
	conn             *pgconn.PgConn
	system           pglogrepl.IdentifySystemResult
	server           *server
	publicationState string     // see readPublicationState; "" if no outbox is to be found
	faults           fault.List // not all of which matters to everyone
}

// openSideSession opens a session for a reader beside the relay. It changes nothing of the
// source, and the session is the caller's to close, also with an error.
func (s *Source) openSideSession(ctx context.Context) (b sideSession, err error) {
	err = s.control.retryOnce(ctx, func(c *pgx.Conn) (err error) {
		if b.server, b.faults, err = s.inspect(ctx, c); err != nil || len(b.server.tables) == 0 {
			return err
		}
		b.publicationState, err = s.readPublicationState(ctx, c, b.server)
		return err
	})
	if err != nil {
		return b, err
	}
	b.conn, b.system, err = s.dial(ctx)
	return b, b.faults.AddErr(err)
}

// tempSlotName is a name that no other slot of the server has: the relay's, so that an
// operator sees whose it is, what the slot is for, and a random end. It needs no
// quoting.
func (s *Source) tempSlotName(purpose string) string {
	const random = 8 // of 32 letters: 2^40 names
	return s.cfg.Name + "_" + purpose + "_" + strings.ToLower(rand.Text()[:random])
}

// explainNoFreeSlot says what to do when there is a slot for the relay and none for
// somebody beside it.
func explainNoFreeSlot(err error, who string) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "53400" { // configuration_limit_exceeded
		return err
	}
	return noStreamError("all replication slots are taken, and "+who, slotsRemedy)
}
