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

// Tap sends the rows that commit from now on. It runs concurrently with a relay and
// changes nothing that the relay uses: it reads through a temporary slot, which the
// server drops with the session. Tap calls started once, when it starts to read. It needs
// the publication and creates none.
//
// Call it once, in place of Open and Run. Acknowledge the received positions, because the
// server retains WAL until then. Tap returns the context's error when the context ends,
// or any error of Open and Run. It does not reconnect, because it would miss the rows
// committed meanwhile. A retry after an *OldTransactionError succeeds once that
// transaction has ended.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, started func()) error {
	s.cfg.MayCreate, s.cfg.HeartbeatInterval = false, -1 // it writes nothing
	conn, p, err := s.openTap(ctx)
	if err != nil {
		closeSession(conn)
		return err
	}
	started()
	_, err = s.readStream(ctx, conn, p, out)
	return s.explainMissingColumns(ctx, err)
}

// openTap starts a stream from a temporary slot. The caller closes the session, also
// after an error.
func (s *Source) openTap(ctx context.Context) (conn *pgconn.PgConn, p streamRange, err error) {
	b, err := s.openSideSession(ctx)
	if err == nil {
		err = b.faults.Err()
	}
	if err != nil {
		return b.conn, p, err
	}

	s.system, s.server, s.publicationState = b.system, b.server, b.publicationState
	name := s.slots.tempName("tap")
	created, _, err := s.slots.create(ctx, b.conn, name, plugin, pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT",
	})
	if err != nil {
		return b.conn, p, explainNoFreeSlot(err, "a tap needs one while it runs")
	}
	if p.from, err = pglogrepl.ParseLSN(created.ConsistentPoint); err != nil {
		return b.conn, p, err
	}

	s.confirmed = p.from
	s.resetState(formatLSN(p.from))
	p.timeout, err = s.beginStream(ctx, b.conn, name, 0)
	return b.conn, p, err
}

// sideSession is a replication session besides the relay's, with the state found on
// opening.
type sideSession struct {
	conn             *pgconn.PgConn
	system           pglogrepl.IdentifySystemResult
	server           *server
	publicationState string     // see readPublicationState; "" if no outbox was found
	faults           fault.List // not all of them matter to every caller
}

// openSideSession opens a session for a reader besides the relay. It changes nothing in
// the source. The caller closes the session, also after an error.
func (s *Source) openSideSession(ctx context.Context) (b sideSession, err error) {
	err = s.control.retryOnce(ctx, func(c *pgx.Conn) (err error) {
		if b.server, b.faults, err = s.catalog(c).inspect(ctx); err != nil || !b.server.publication.needed {
			return err
		}
		b.publicationState, err = s.catalog(c).readPublicationState(ctx, b.server)
		return err
	})
	if err != nil {
		return b, err
	}
	b.conn, b.system, err = s.slots.dial(ctx)
	return b, b.faults.AddErr(err)
}

// tempName returns an unused slot name: the relay's name, so that an operator sees
// the owner, the purpose, and a random suffix. It needs no quoting.
func (s *slots) tempName(purpose string) string {
	const random = 8 // of 32 letters: 2^40 names
	return s.cfg.Name + "_" + purpose + "_" + strings.ToLower(rand.Text()[:random])
}

// explainNoFreeSlot adds the remedy if the relay has its slot but no other slot is free.
func explainNoFreeSlot(err error, purpose string) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "53400" { // configuration_limit_exceeded
		return err
	}
	return fault.NoStream("all replication slots are taken, and "+purpose, slotsRemedy)
}
