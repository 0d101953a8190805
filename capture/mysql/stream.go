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
	// pauseKept is how long a receiver may let a batch wait before the connection
	// is given up: a server that cannot write ends it by itself after
	// net_write_timeout, and that is an error and no pause.
	pauseKept = 10 * time.Second
	// pauseUnwatched is how long it may wait before the connection is watched.
	pauseUnwatched = 50 * time.Millisecond
	// idleEvery is the shortest time between two positions without rows, and
	// ownEvery that where only relays wrote. Their writes must not keep each other
	// going: a checkpoint that is saved is a transaction too. But a position that
	// stands still would one day be older than the log.
	idleEvery = 100 * time.Millisecond
	ownEvery  = 10 * time.Minute
	// aliveEvery is how often something is sent at the least; a heartbeat may come a
	// little before its time.
	aliveEvery = HeartbeatPeriod - HeartbeatPeriod/4
)

var (
	// errPaused ends a dump whose receiver lets it wait.
	errPaused = errors.New("the receiver has paused for long")
	// errLost ends a dump whose connection has ended meanwhile.
	errLost = errors.New("the connection ended while the receiver let a batch wait")
	// errShutdown ends a dump whose server would wait for it.
	errShutdown = errors.New("the server ends its sessions")
	// errDone ends a dump at the end of the span.
	errDone = errors.New("the span has ended")
)

// stream hands on what a dump brings. It is the syncer's handler, whose goroutine
// it belongs to until the dump is closed.
type stream struct {
	src   *Source
	ctx   context.Context
	dump  *dump
	asm   *assembler
	out   chan<- capture.Batch
	until gtidSet // nil is for ever
	begun func()  // called once the server sends, if set

	connected bool
	idleAt    time.Time // when the next position without rows may be sent
	aliveAt   time.Time // when something was last sent
	waiting   *capture.Batch
	progress  bool
}

// HandleEvent implements replication.EventHandler. Its error ends the dump.
func (st *stream) HandleEvent(e *replication.BinlogEvent) error {
	now := time.Now()
	st.asm.reader.at = now
	if err := st.asm.event(e.Header.EventType, e.RawData, e.Header.LogPos); err != nil {
		return st.fault(err)
	}
	st.connect(e.Header.EventType)
	if !st.asm.open && e.Header.EventType != replication.ROTATE_EVENT { // between two files
		st.sendIdle(now)
	}
	st.sayAlive(now) // unless something was sent
	if st.asm.open {
		return nil
	}
	if st.ended() {
		return errDone
	}
	return nil
}

// connect says that the server sends. What it has against that it says before the
// description of its format.
func (st *stream) connect(kind replication.EventType) {
	if st.connected || kind != replication.FORMAT_DESCRIPTION_EVENT {
		return
	}
	st.connected = true
	st.src.resume.Connected()
	if st.begun != nil {
		st.begun()
	}
}

// fault tells what cannot be decoded from what ends a dump otherwise.
func (st *stream) fault(err error) error {
	var lost *capture.LostError
	var setup *store.SetupError
	var row *fault.RowError
	if err == errPaused || err == errLost || err == errShutdown || st.ctx.Err() != nil ||
		errors.As(err, &lost) || errors.As(err, &setup) || errors.As(err, &row) {
		return err
	}
	return &fault.LogError{Err: err}
}

// ended reports whether everything up to the span's end was sent.
func (st *stream) ended() bool { return st.until != nil && st.asm.last.set.contains(st.until) }

// send hands a batch over.
func (st *stream) send(b capture.Batch) error {
	if !st.src.resume.Trim(&b) {
		return nil
	}
	st.src.log.Offer(b.Position)
	select {
	case st.out <- b:
	default:
		if err := st.sendSlowly(b); err != nil {
			return err
		}
	}
	st.sent(&b)
	return nil
}

func (st *stream) sent(b *capture.Batch) {
	st.aliveAt = st.asm.reader.at
	st.src.resume.Sent(len(b.Items), b.Position)
	st.progress = true
}

// sendSlowly waits for the receiver. What comes meanwhile is read ahead, up to a
// bound, so that a connection that ends is noticed.
func (st *stream) sendSlowly(b capture.Batch) error {
	soon := time.NewTimer(pauseUnwatched)
	defer soon.Stop()
	select {
	case st.out <- b:
		return nil
	case <-st.ctx.Done():
		return st.ctx.Err()
	case <-soon.C:
	}
	ended, stop := st.dump.conn.ahead()
	defer stop()
	var shutdown <-chan struct{}
	if st.src.server.flavour == mariaDB { // see the package's text
		listening, stopListening := st.src.listen(st.ctx)
		defer stopListening()
		shutdown = listening
	}
	late := time.NewTimer(pauseKept)
	defer late.Stop()
	select {
	case st.out <- b:
		return nil
	case <-ended:
		return errLost
	case <-shutdown:
		return errShutdown
	case <-late.C:
		st.waiting = &b
		return errPaused
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}

// sendWaiting hands over the batch that was waiting when the dump was given up.
func (st *stream) sendWaiting() error {
	select {
	case st.out <- *st.waiting:
		st.sent(st.waiting)
		st.waiting = nil
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
	if due.since.IsZero() || now.Before(st.idleAt) || !due.foreign && now.Sub(due.since) < ownEvery || st.src.resume.Partly() {
		return
	}
	st.idleAt = now.Add(idleEvery)
	b := capture.Batch{Position: st.asm.last.position()}
	if !st.src.resume.Trim(&b) {
		return
	}
	st.src.log.Offer(b.Position)
	select {
	case st.out <- b:
		st.sent(&b)
		*due = idle{}
	default:
	}
}

// sayAlive lets a receiver that is there know that the server is, where nothing else
// has for a while: it is idle, or a long transaction of others is on its way.
func (st *stream) sayAlive(now time.Time) {
	if !st.connected || now.Sub(st.aliveAt) < aliveEvery {
		return
	}
	select {
	case st.out <- capture.Batch{}:
		st.aliveAt = now
	default:
	}
}
