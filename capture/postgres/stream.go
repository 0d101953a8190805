package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

const (
	// maxStatusInterval is the longest time between two statuses. pausedStatusInterval
	// applies while the receiver does not accept a batch. minStatusInterval is the
	// shortest time after an acknowledgement.
	maxStatusInterval    = 10 * time.Second
	pausedStatusInterval = time.Second
	minStatusInterval    = 100 * time.Millisecond

	// statusBytes is how much acknowledged WAL makes a status due at once. At 15 MB/s of
	// WAL the server would otherwise retain 1.5 MB more between two statuses.
	statusBytes = 256 << 10
	// idleInterval is the shortest time between two positions without rows.
	idleInterval = 100 * time.Millisecond
	// defaultSenderTimeout replaces a wal_sender_timeout of 0, which means off. It is the
	// server's own default.
	defaultSenderTimeout = time.Minute
	writeTimeout         = 10 * time.Second
	// Since version 16 a walsender that goes to sleep during a commit may miss the
	// commit: it looks for new WAL before it joins the list of processes that a commit
	// wakes (WalSndWaitForWal, WalSndWait in walsender.c). It then sleeps until the next
	// commit or the next message from the client. So after rows the client sends a
	// status, soon at first and then less and less often.
	missedCommitVersion = 160000
	minNudge            = 5 * time.Millisecond
	maxNudge            = time.Second
)

// stream is one run on one connection. Everything except lastActivity and failure belongs
// to the goroutine of Run.
type stream struct {
	src  *Source
	conn *pgconn.PgConn
	net  net.Conn
	asm  *assembler
	out  chan<- capture.Batch

	statusInterval time.Duration // between statuses
	silenceTimeout time.Duration // without a message, after which the server counts as lost

	sent          pglogrepl.LSN // the last position sent to the receiver
	idle          pglogrepl.LSN // a later position without rows, not yet sent
	idleAt        time.Time     // when idle may be sent
	status        pglogrepl.LSN // the position of the last status
	statusAt      time.Time
	receivedAt    time.Time
	mayMissCommit bool          // the server may miss a commit
	nudge         time.Duration // the wait before the next nudge
	nudgeAt       time.Time
	deadline      time.Time    // current read deadline; zero if unknown
	progress      bool         // something new was sent
	lastActivity  atomic.Int64 // last activity in the WAL, in Unix nanoseconds
	failure       atomic.Pointer[error]
}

// fail ends the run with an error. It may be called from any goroutine.
func (st *stream) fail(err error) {
	st.failure.CompareAndSwap(nil, &err)
	st.src.wake.interrupt()
}

func newStream(s *Source, conn *pgconn.PgConn, asm *assembler, out chan<- capture.Batch, from pglogrepl.LSN, timeout time.Duration) *stream {
	if timeout <= 0 {
		timeout = defaultSenderTimeout
	}
	now := time.Now()
	st := &stream{
		src: s, conn: conn, net: conn.Conn(), asm: asm, out: out,
		statusInterval: min(maxStatusInterval, timeout/3), silenceTimeout: timeout,
		sent: from, statusAt: now, receivedAt: now,
		mayMissCommit: s.server.version >= missedCommitVersion, nudge: minNudge, nudgeAt: now.Add(minNudge),
	}
	st.lastActivity.Store(now.UnixNano())
	return st
}

// run reads until the context ends, the span ends or the connection is lost.
func (st *stream) run(ctx context.Context) error {
	frontend := st.conn.Frontend()
	for {
		acked, err := st.maintain(time.Now())
		if err != nil {
			return err
		}
		if err := st.setReadDeadline(acked); err != nil {
			return err
		}
		// After the deadline was set, so that no earlier wake-up is lost.
		if err := ctx.Err(); err != nil {
			return st.sendFinalStatus(err)
		}
		if err := st.failure.Load(); err != nil {
			return *err
		}
		if st.src.acked() != acked {
			continue
		}
		msg, err := frontend.Receive()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				st.deadline = time.Time{}
				continue
			}
			return fmt.Errorf("read from server: %w", err)
		}
		st.receivedAt = time.Now()
		if done, err := st.handle(ctx, msg); done || err != nil {
			if err == nil || ctx.Err() != nil {
				return st.sendFinalStatus(ctx.Err())
			}
			return err
		}
	}
}

// handle handles one message of the server. done means that the span has ended.
func (st *stream) handle(ctx context.Context, msg pgproto3.BackendMessage) (done bool, err error) {
	switch msg := msg.(type) {
	case *pgproto3.CopyData:
		if err := st.handleData(ctx, msg.Data); err != nil {
			return false, err
		}
		return st.reachedEnd(), nil
	case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		return false, nil
	case *pgproto3.ErrorResponse:
		return false, st.src.slots.explainStreamError(pgconn.ErrorResponseToPgError(msg))
	case *pgproto3.CopyDone:
		return false, errors.New("server ended the stream")
	}
	return false, fmt.Errorf("unexpected %T in the stream", msg)
}

// reachedEnd reports whether everything up to the span's end was sent.
func (st *stream) reachedEnd() bool {
	until := st.asm.until
	return until != 0 && (st.asm.reachedEnd || !st.asm.open && (st.sent >= until || st.idle >= until))
}

func (st *stream) handleData(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("empty message in the stream")
	}

	switch data[0] {
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return &fault.UnreadableLogError{Err: err}
		}
		st.nudge, st.nudgeAt = minNudge, st.receivedAt.Add(minNudge)
		st.asm.tx.ReceivedAt = st.receivedAt
		st.asm.at = x.WALStart
		b, ready, err := st.asm.message(x.WALData)
		if err != nil {
			return &fault.UnreadableLogError{Err: err}
		}
		if !ready {
			return nil
		}
		st.lastActivity.Store(st.receivedAt.UnixNano())
		return st.send(ctx, b)
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return &fault.UnreadableLogError{Err: err}
		}
		st.keepalive(k.ServerWALEnd)
		if k.ReplyRequested {
			return st.sendStatus(st.receivedAt, false)
		}
		return nil
	}

	return &fault.UnreadableLogError{Err: fmt.Errorf("unknown message type %q in the stream", data[0])}
}

// keepalive records the position up to which the server has sent everything. It is
// ignored inside a transaction, and before a partly sent transaction is complete.
func (st *stream) keepalive(end pglogrepl.LSN) {
	if st.asm.open || st.src.resume.MidTransaction() || end <= max(st.sent, st.idle) {
		return
	}
	st.idle = end
	st.lastActivity.Store(st.receivedAt.UnixNano())
}

// send sends a batch to the receiver. While the receiver does not accept it, nothing is
// read, and statuses keep the connection alive.
func (st *stream) send(ctx context.Context, b capture.Batch) error {
	if len(b.Items) == 0 && len(b.Changes) == 0 && len(b.Marks) == 0 {
		lsn, err := parseLSN(b.Position)
		if err != nil {
			return err
		}
		st.keepalive(lsn)
		return nil
	}
	if !st.src.resume.Trim(&b) {
		return nil
	}

	n, at := len(b.Items), b.Position
	lsn, err := parseLSN(at)
	if err != nil {
		return err
	}

	st.src.acks.Offer(at) // it may be acknowledged before the send returns
	select {
	case st.out <- b:
	default:
		if err := st.sendBlocking(ctx, b); err != nil {
			return err
		}
	}

	st.src.resume.Sent(n, at)
	st.progress = true
	st.sent = max(st.sent, lsn)
	return nil
}

func (st *stream) sendBlocking(ctx context.Context, b capture.Batch) error {
	tick := time.NewTicker(min(pausedStatusInterval, st.statusInterval))
	defer tick.Stop()
	for {
		select {
		case st.out <- b:
			st.receivedAt = time.Now() // nothing was read meanwhile
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			if err := st.failure.Load(); err != nil {
				return *err
			}
			if err := st.sendStatus(now, false); err != nil {
				return err
			}
		}
	}
}

// maintain does everything that is due: it sends a status or a position without rows, and
// detects a lost server. It returns the acknowledged position that it used.
func (st *stream) maintain(now time.Time) (acked pglogrepl.LSN, err error) {
	if quiet := now.Sub(st.receivedAt); quiet > st.silenceTimeout {
		return 0, fmt.Errorf("no message from server for %s", quiet.Round(time.Millisecond))
	}

	acked = st.src.acked()
	if !now.Before(st.nextStatus(acked)) {
		if !now.Before(st.nudgeAt) {
			st.nudge = min(4*st.nudge, maxNudge)
			st.nudgeAt = now.Add(st.nudge)
		}
		// An idle server responds only on request.
		if err := st.sendStatus(now, now.Sub(st.receivedAt) >= st.statusInterval); err != nil {
			return 0, err
		}
	}

	if st.idle > st.sent && !now.Before(st.idleAt) {
		st.sendIdle(now)
	}
	return acked, nil
}

// sendIdle sends a position without rows if the receiver is ready; otherwise a later
// position replaces it.
func (st *stream) sendIdle(now time.Time) {
	st.idleAt = now.Add(idleInterval)
	b := capture.Batch{Position: formatLSN(st.idle)}
	if !st.src.resume.Trim(&b) {
		return
	}
	st.src.acks.Offer(b.Position)
	select {
	case st.out <- b:
		st.src.resume.Sent(0, b.Position)
		st.sent, st.idle, st.progress = st.idle, 0, true
	default:
	}
}

// nextStatus returns when the next status is due.
func (st *stream) nextStatus(acked pglogrepl.LSN) time.Time {
	next := st.statusAt.Add(st.statusInterval)
	switch at := st.ackPosition(acked); {
	case at >= st.status+statusBytes:
		return st.statusAt
	case at > st.status:
		next = st.statusAt.Add(minStatusInterval)
	}
	if st.mayMissCommit && st.nudgeAt.Before(next) {
		next = st.nudgeAt
	}
	return next
}

// setReadDeadline sets the deadline of the next read. An earlier deadline stays as it is,
// because each row would move it, and setting it is not free.
func (st *stream) setReadDeadline(acked pglogrepl.LSN) error {
	next := st.nextStatus(acked)
	if st.idle > st.sent && st.idleAt.Before(next) {
		next = st.idleAt
	}
	if !st.deadline.IsZero() && !next.Before(st.deadline) {
		return nil
	}
	st.deadline = next
	if err := st.net.SetReadDeadline(next); err != nil {
		return fmt.Errorf("read from server: %w", err)
	}
	return nil
}

// ackPosition is the position of a status: at most the acknowledged position, and at most
// the position sent.
func (st *stream) ackPosition(acked pglogrepl.LSN) pglogrepl.LSN {
	return min(acked, st.sent)
}

// sendStatus sends a status. All three positions are the same and never partly 0, because
// the library replaces a zero flush position with the written one.
func (st *stream) sendStatus(now time.Time, ask bool) error {
	at := st.ackPosition(st.src.acked())
	st.src.confirmed = max(st.src.confirmed, at)
	if err := st.net.SetWriteDeadline(now.Add(writeTimeout)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), st.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: at, WALFlushPosition: at, WALApplyPosition: at, ClientTime: now, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	st.status, st.statusAt = at, now
	return nil
}

// sendFinalStatus sends the last acknowledgement and returns why the run ends.
func (st *stream) sendFinalStatus(reason error) error {
	_ = st.sendStatus(time.Now(), false) // otherwise the server would send settled rows again
	return reason
}
