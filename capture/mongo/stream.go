package mongo

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

const (
	// pauseTimeout is how long a receiver may let a batch wait before the cursor is given
	// up: the server forgets one that is not used for 10 minutes (cursorTimeoutMillis),
	// and keeps memory for it.
	pauseTimeout = 10 * time.Second
	// batchesAtOnce is how many batches the server may send in one answer, of 16 MiB at
	// most: each answer is waited for.
	batchesAtOnce = 4
	// idleInterval is the shortest time between two positions without rows. The server
	// writes into an idle oplog by itself each 10 s (periodicNoopIntervalSecs), and a
	// checkpoint that is saved moves it too: sooner, each would bring the next.
	idleInterval = 10 * time.Second
)

// errSpanEnd ends a stream at the end of the span.
var errSpanEnd = errors.New("the span has ended")

// stream hands on what a cursor brings. It belongs to the goroutine of Run.
type stream struct {
	src     *Source
	db      *mongo.Database
	out     chan<- capture.Batch
	until   *oplogPosition // nil is for ever
	onStart func()         // called once the server sends, if set

	at            oplogPosition // everything up to here was sent
	cursor        *cursor
	limitPayloads bool // an event was too large; the cursor leaves large payloads out
	connected     bool
	idle          *oplogPosition // a later place without rows, not yet sent
	idleAt        time.Time      // when it may be
	progress      bool           // something new was sent

	batch capture.Batch // what is being made
	last  oplogPosition // its end
	bytes int
}

// run sends until the context ends, the span ends (errSpanEnd), or the cursor is lost.
func (st *stream) run(ctx context.Context) error {
	defer func() { st.closeCursor(ctx) }()
	for {
		if st.reachedEnd() {
			return errSpanEnd
		}
		if st.cursor == nil {
			if err := st.open(ctx); err != nil {
				return err
			}
		}
		a, err := st.cursor.next(ctx, batchesAtOnce*st.src.cfg.MaxBatchRows)
		if hasCode(err, errTooLarge) && !st.limitPayloads {
			st.limitPayloads = true
			st.closeCursor(ctx)
			continue
		}
		if err != nil {
			return err
		}
		st.reportConnected()
		if err := st.handleBatch(ctx, a); err != nil {
			return err
		}
		if st.limitPayloads && len(a.events) > 0 { // the large event was among them, or is to come
			st.limitPayloads = false
			st.closeCursor(ctx)
		}
	}
}

// open opens a cursor behind what was sent, on the replica set that Open saw.
func (st *stream) open(ctx context.Context) error {
	now, err := identify(ctx, st.db)
	if err != nil {
		return err
	}
	if f := now.streamFault(); f != nil {
		return f.Err()
	}
	if err := now.checkPrimary(); err != nil {
		return err
	}
	if err := now.checkSameServer(ctx, st.db, st.src.server, &st.at); err != nil {
		return err
	}
	if st.cursor, err = openCursor(ctx, st.db, now, st.src.plan.pipeline(&st.at, st.limitPayloads), st.src.cfg.Name); err != nil {
		return err
	}
	st.cursor.onAlive = st.sendAlive
	return nil
}

func (st *stream) closeCursor(ctx context.Context) {
	if st.cursor != nil {
		st.cursor.close(ctx)
		st.cursor = nil
	}
}

// reportConnected says that the server sends. That the oplog reaches back is known with the
// first answer.
func (st *stream) reportConnected() {
	if st.connected {
		return
	}
	st.connected = true
	st.src.resume.Connected()
	if st.onStart != nil {
		st.onStart()
	}
}

// reachedEnd reports whether everything up to the span's end was sent.
func (st *stream) reachedEnd() bool { return st.until != nil && st.at.compare(st.until) >= 0 }

// handleBatch sends what an answer holds. Of one with nothing to send its end is a place
// without rows.
func (st *stream) handleBatch(ctx context.Context, a cursorBatch) error {
	now, before := time.Now(), st.at
	for _, raw := range a.events {
		doc, ok := raw.DocumentOK()
		if !ok {
			return &fault.UnreadableLogError{Err: errors.New("an event is not a document")}
		}
		if err := st.event(ctx, doc, now); err != nil {
			return err
		}
	}
	if err := st.flush(ctx); err != nil {
		return err
	}
	if st.at == before {
		return st.handleIdle(a.postBatchToken, now)
	}
	return nil
}

// event adds an event to the batch, and sends the batch when it is full. An event of
// before the place to go on from is left out: such come where the server was not asked
// to resume by a token.
func (st *stream) event(ctx context.Context, raw bson.Raw, now time.Time) error {
	p := st.src.plan
	e, err := eventOf(raw, p.hash)
	if err != nil {
		return &fault.UnreadableLogError{Err: err}
	}
	if e.place.compare(&st.at) <= 0 {
		return nil
	}
	if st.until != nil && e.place.compare(st.until) > 0 {
		if err := st.flush(ctx); err != nil {
			return err
		}
		return errSpanEnd
	}
	if why := e.lossReason(p, st.db.Name()); why != "" {
		if err := st.flush(ctx); err != nil {
			return err
		}
		return lostErrorf("%s", why)
	}
	switch {
	case e.collection == markCollection:
		if id, _ := e.document.Lookup("_id").StringValueOK(); id != st.src.cfg.Name {
			return nil // another relay's
		}
		token, _ := e.document.Lookup(fieldMark).StringValueOK()
		st.batch.Marks, st.last = append(st.batch.Marks, token), e.place
		return st.flush(ctx) // marks come behind the rows of a batch
	case e.kind != kindInsert:
		return nil
	}
	return st.add(ctx, &e, now)
}

// add adds an event's rows to the batch.
func (st *stream) add(ctx context.Context, e *event, now time.Time) error {
	before := len(st.batch.Items)
	items, err := st.src.plan.items(st.batch.Items, e, st.db.Name(), now)
	if err != nil {
		if sendErr := st.flush(ctx); sendErr != nil {
			return sendErr
		}
		return err
	}
	size := 0
	for i := range items[before:] {
		st.src.resume.DropLargePayload(&items[before+i])
		size += len(items[before+i].Payload)
	}
	if before > 0 && (len(items) > st.src.cfg.MaxBatchRows || st.bytes+size > st.src.cfg.MaxBatchBytes) {
		added := append(items[:0:0], items[before:]...)
		if err := st.flush(ctx); err != nil {
			return err
		}
		items = added
	}
	st.batch.Items, st.last = items, e.place
	st.bytes += size
	return nil
}

// flush sends the batch.
func (st *stream) flush(ctx context.Context) error {
	b := st.batch
	st.batch, st.bytes = capture.Batch{}, 0
	if len(b.Items) == 0 && len(b.Marks) == 0 {
		return nil
	}
	b.Position = st.last.format()
	if !st.src.resume.Trim(&b) {
		return nil
	}
	st.src.acks.Offer(b.Position)
	select {
	case st.out <- b:
	default:
		if err := st.sendBlocking(ctx, b); err != nil {
			return err
		}
	}
	st.sent(len(b.Items), st.last)
	return nil
}

func (st *stream) sent(rows int, at oplogPosition) {
	st.at, st.idle, st.progress = at, nil, true
	st.src.resume.Sent(rows, at.format())
}

// sendBlocking waits for the receiver. After a while the cursor is given up, and another
// is opened once the receiver has taken all that this one brought.
func (st *stream) sendBlocking(ctx context.Context, b capture.Batch) error {
	late := time.NewTimer(pauseTimeout)
	defer late.Stop()
	for {
		select {
		case st.out <- b:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			st.closeCursor(ctx)
		}
	}
}

// handleIdle takes an answer without rows and markers: its token is a place without rows.
func (st *stream) handleIdle(token bson.Raw, now time.Time) error {
	p, err := parseToken(token, st.src.plan.hash)
	if err != nil {
		return &fault.UnreadableLogError{Err: err}
	}
	// A token of the same time as an event's means no more than the event's.
	if last := st.newestPosition(); p.at.After(last.at) {
		st.idle = &p
	}
	if st.idle == nil || now.Before(st.idleAt) && !st.isAtEnd(st.idle) {
		st.sendAlive()
		return nil
	}
	b := capture.Batch{Position: st.idle.format()}
	if !st.src.resume.Trim(&b) {
		return nil
	}
	st.src.acks.Offer(b.Position)
	select {
	case st.out <- b:
		st.idleAt = now.Add(idleInterval)
		st.sent(0, *st.idle)
	default: // a later one takes its place
		if st.isAtEnd(st.idle) {
			st.at = *st.idle
		}
	}
	return nil
}

// newestPosition is how far the stream was read.
func (st *stream) newestPosition() *oplogPosition {
	if st.idle != nil {
		return st.idle
	}
	return &st.at
}

// isAtEnd reports whether the span ends at a place or before it.
func (st *stream) isAtEnd(p *oplogPosition) bool { return st.until != nil && p.compare(st.until) >= 0 }

// sendAlive lets a receiver that is there know that the server is.
func (st *stream) sendAlive() {
	select {
	case st.out <- capture.Batch{}:
	default:
	}
}
