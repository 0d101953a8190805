package mysql

import (
	"context"
	"errors"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// pauseTimeout is how long a receiver may leave a batch waiting before the source
	// closes the connection. Otherwise the server would close it after net_write_timeout,
	// which is an error and not a pause.
	pauseTimeout = 10 * time.Second
	// watchDelay is how long it may wait before the connection is watched.
	watchDelay = 50 * time.Millisecond
	// idleInterval is the minimum time between two positions without rows;
	// ownIdleInterval is the minimum if only relays wrote. Relays' writes must not keep
	// each other going, because saving a checkpoint is a transaction too. But a position
	// that never moves would eventually be older than the log.
	idleInterval    = 100 * time.Millisecond
	ownIdleInterval = 10 * time.Minute
	// aliveInterval is the maximum time between two sends. It is shorter than
	// HeartbeatPeriod, because a heartbeat may come a little early.
	aliveInterval = HeartbeatPeriod - HeartbeatPeriod/4
)

var (
	// errPaused ends a dump whose receiver has paused.
	errPaused = errors.New("receiver paused for too long")
	// errConnectionLost ends a dump whose connection ended during a pause.
	errConnectionLost = errors.New("connection lost while the receiver paused")
	// errShutdown ends a dump that would delay the server's shutdown.
	errShutdown = errors.New("server is shutting down")
	// errSpanEnd ends a dump at the end of the span.
	errSpanEnd = errors.New("span ended")
)

// stream sends the batches of a dump to the receiver. It is the syncer's handler and
// belongs to the syncer's goroutine until the dump is closed.
type stream struct {
	src     *Source
	ctx     context.Context
	dump    *dump
	asm     *assembler
	out     chan<- capture.Batch
	until   mysql.GTIDSet // nil is forever
	onStart func()        // called once the server sends; may be nil

	connected    bool
	idleAt       time.Time // earliest time of the next position without rows
	aliveAt      time.Time // time of the last send
	pendingBatch *capture.Batch
	progress     bool
}

// HandleEvent implements replication.EventHandler. Its error ends the dump.
func (st *stream) HandleEvent(e *replication.BinlogEvent) error {
	now := time.Now()
	st.asm.tx.ReceivedAt = now
	if err := st.asm.event(e.Header.EventType, e.RawData, e.Header.LogPos); err != nil {
		return st.classify(err)
	}

	st.reportConnected(e.Header.EventType)
	if !st.asm.open && e.Header.EventType != replication.ROTATE_EVENT { // not between two files
		st.sendIdle(now)
	}

	st.sendAlive(now) // unless something was sent
	if st.asm.open {
		return nil
	}

	if st.reachedEnd() {
		return errSpanEnd
	}
	return nil
}

// reportConnected reports the connection once the server sends. A server that refuses a
// dump does so before it sends the format description.
func (st *stream) reportConnected(kind replication.EventType) {
	if st.connected || kind != replication.FORMAT_DESCRIPTION_EVENT {
		return
	}
	st.connected = true
	st.src.resume.Connected()
	if st.onStart != nil {
		st.onStart()
	}
}

// classify marks errors of decoding as *fault.UnreadableLogError, and returns other
// errors unchanged.
func (st *stream) classify(err error) error {
	var lost *capture.LostError
	var setup *store.SetupError
	var row *fault.RowError
	if err == errPaused || err == errConnectionLost || err == errShutdown || st.ctx.Err() != nil ||
		errors.As(err, &lost) || errors.As(err, &setup) || errors.As(err, &row) {
		return err
	}
	return &fault.UnreadableLogError{Err: err}
}

// reachedEnd reports whether everything up to the span's end was sent.
func (st *stream) reachedEnd() bool { return st.until != nil && contains(st.asm.last.set, st.until) }

// send sends a batch to the receiver.
func (st *stream) send(b capture.Batch) error {
	if !st.src.resume.Trim(&b) {
		return nil
	}
	st.src.acks.Offer(b.Position)
	select {
	case st.out <- b:
	default:
		if err := st.sendBlocking(b); err != nil {
			return err
		}
	}

	st.sent(&b)
	return nil
}

func (st *stream) sent(b *capture.Batch) {
	st.aliveAt = st.asm.tx.ReceivedAt
	st.src.resume.Sent(len(b.Items), b.Position)
	st.progress = true
}

// sendBlocking waits for the receiver. Meanwhile it reads ahead, up to maxPrefetch, in
// order to notice a closed connection.
func (st *stream) sendBlocking(b capture.Batch) error {
	watchTimer := time.NewTimer(watchDelay)
	defer watchTimer.Stop()
	select {
	case st.out <- b:
		return nil
	case <-st.ctx.Done():
		return st.ctx.Err()
	case <-watchTimer.C:
	}

	ended, stop := st.dump.conn.prefetch()
	defer stop()
	var shutdown <-chan struct{}
	if st.src.server.flavour == mariaDB { // see the package documentation
		listening, stopListening := st.src.watchShutdown(st.ctx)
		defer stopListening()
		shutdown = listening
	}

	pauseTimer := time.NewTimer(pauseTimeout)
	defer pauseTimer.Stop()
	select {
	case st.out <- b:
		return nil
	case <-ended:
		return errConnectionLost
	case <-shutdown:
		return errShutdown
	case <-pauseTimer.C:
		st.pendingBatch = &b
		return errPaused
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}

// sendPending sends the batch that was waiting when the dump was closed.
func (st *stream) sendPending() error {
	select {
	case st.out <- *st.pendingBatch:
		st.sent(st.pendingBatch)
		st.pendingBatch = nil
		return nil
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}

// sendIdle sends a position without rows if the receiver is ready; otherwise a later one
// replaces it. It does nothing while a transaction was sent only in part.
func (st *stream) sendIdle(now time.Time) {
	idle := &st.asm.idle
	if idle.since.IsZero() || now.Before(st.idleAt) || !idle.foreign && now.Sub(idle.since) < ownIdleInterval || st.src.resume.MidTransaction() {
		return
	}

	st.idleAt = now.Add(idleInterval)
	b := capture.Batch{Position: st.asm.last.format()}
	if !st.src.resume.Trim(&b) {
		return
	}

	st.src.acks.Offer(b.Position)
	select {
	case st.out <- b:
		st.sent(&b)
		*idle = idleState{}
	default:
	}
}

// sendAlive sends an empty batch to a ready receiver as a sign of life, if nothing else
// was sent for a while: the server is idle, or is sending a long transaction of other
// tables.
func (st *stream) sendAlive(now time.Time) {
	if !st.connected || now.Sub(st.aliveAt) < aliveInterval {
		return
	}
	select {
	case st.out <- capture.Batch{}:
		st.aliveAt = now
	default:
	}
}
