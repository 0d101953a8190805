package mysql

import (
	"context"
	"errors"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// pauseTimeout is how long a receiver may let a batch wait before the connection
	// is given up: a server that cannot write ends it by itself after
	// net_write_timeout, and that is an error and no pause.
	pauseTimeout = 10 * time.Second
	// watchDelay is how long it may wait before the connection is watched.
	watchDelay = 50 * time.Millisecond
	// idleInterval is the shortest time between two positions without rows, and
	// ownIdleInterval that where only relays wrote. Their writes must not keep each other
	// going: a checkpoint that is saved is a transaction too. But a position that
	// stands still would one day be older than the log.
	idleInterval    = 100 * time.Millisecond
	ownIdleInterval = 10 * time.Minute
	// aliveInterval is how often something is sent at the least; a heartbeat may come a
	// little before its time.
	aliveInterval = HeartbeatPeriod - HeartbeatPeriod/4
)

var (
	// errPaused ends a dump whose receiver lets it wait.
	errPaused = errors.New("the receiver has paused for long")
	// errConnectionLost ends a dump whose connection has ended meanwhile.
	errConnectionLost = errors.New("the connection ended while the receiver let a batch wait")
	// errShutdown ends a dump whose server would wait for it.
	errShutdown = errors.New("the server ends its sessions")
	// errSpanEnd ends a dump at the end of the span.
	errSpanEnd = errors.New("the span has ended")
)

// stream hands on what a dump brings. It is the syncer's handler, whose goroutine
// it belongs to until the dump is closed.
type stream struct {
	src     *Source
	ctx     context.Context
	dump    *dump
	asm     *assembler
	out     chan<- capture.Batch
	until   gtidSet // nil is for ever
	onStart func()  // called once the server sends, if set

	connected    bool
	idleAt       time.Time // when the next position without rows may be sent
	aliveAt      time.Time // when something was last sent
	pendingBatch *capture.Batch
	progress     bool
}

// HandleEvent implements replication.EventHandler. Its error ends the dump.
func (st *stream) HandleEvent(e *replication.BinlogEvent) error {
	now := time.Now()
	st.asm.reader.receivedAt = now
	if err := st.asm.event(e.Header.EventType, e.RawData, e.Header.LogPos); err != nil {
		return st.classify(err)
	}
	st.reportConnected(e.Header.EventType)
	if !st.asm.open && e.Header.EventType != replication.ROTATE_EVENT { // between two files
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

// reportConnected says that the server sends. What it has against that it says before the
// description of its format.
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

// classify tells what cannot be decoded from what ends a dump otherwise.
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
func (st *stream) reachedEnd() bool { return st.until != nil && st.asm.last.set.contains(st.until) }

// send hands a batch over.
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
	st.aliveAt = st.asm.reader.receivedAt
	st.src.resume.Sent(len(b.Items), b.Position)
	st.progress = true
}

// sendBlocking waits for the receiver. What comes meanwhile is read ahead, up to a
// bound, so that a connection that ends is noticed.
func (st *stream) sendBlocking(b capture.Batch) error {
	soon := time.NewTimer(watchDelay)
	defer soon.Stop()
	select {
	case st.out <- b:
		return nil
	case <-st.ctx.Done():
		return st.ctx.Err()
	case <-soon.C:
	}
	ended, stop := st.dump.conn.prefetch()
	defer stop()
	var shutdown <-chan struct{}
	if st.src.server.flavour == mariaDB { // see the package's text
		listening, stopListening := st.src.watchShutdown(st.ctx)
		defer stopListening()
		shutdown = listening
	}
	late := time.NewTimer(pauseTimeout)
	defer late.Stop()
	select {
	case st.out <- b:
		return nil
	case <-ended:
		return errConnectionLost
	case <-shutdown:
		return errShutdown
	case <-late.C:
		st.pendingBatch = &b
		return errPaused
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}

// sendPending hands over the batch that was waiting when the dump was given up.
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

// sendIdle hands a position without rows over if the receiver is there to take
// it; a later one takes its place otherwise. It means nothing before a
// transaction that was sent in part is complete.
func (st *stream) sendIdle(now time.Time) {
	due := &st.asm.idle
	if due.since.IsZero() || now.Before(st.idleAt) || !due.foreign && now.Sub(due.since) < ownIdleInterval || st.src.resume.MidTransaction() {
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
		*due = idleState{}
	default:
	}
}

// sendAlive lets a receiver that is there know that the server is, where nothing else
// has for a while: it is idle, or a long transaction of others is on its way.
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
