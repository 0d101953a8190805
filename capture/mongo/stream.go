package mongo

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

const (
	// pauseTimeout is how long a batch may wait for its receiver before the cursor is
	// closed. The server keeps memory for a cursor and discards an idle one after 10
	// minutes (cursorTimeoutMillis).
	pauseTimeout = 10 * time.Second
	// batchesAtOnce is how many batches the server may send in one answer (16 MiB at most),
	// because each answer costs a round trip.
	batchesAtOnce = 4
	// idleInterval is the minimum interval between two positions without rows. The server
	// writes a no-op into an idle oplog every 10 s (periodicNoopIntervalSecs). Saving a
	// checkpoint moves the oplog too, so with a shorter interval each position would cause
	// the next.
	idleInterval = 10 * time.Second
)

// errSpanEnd ends a stream at the end of the span.
var errSpanEnd = errors.New("span ended")

// stream forwards the events of a cursor. It belongs to the goroutine of Run.
type stream struct {
	src     *Source
	db      *mongo.Database
	out     chan<- capture.Batch
	until   *oplogPosition // nil: no end
	onStart func()         // if set, called with the first answer

	at            oplogPosition // everything up to here was sent
	cursor        *cursor
	limitPayloads bool // an event was too large; the cursor leaves out large payloads
	connected     bool
	idle          *oplogPosition // a later position without rows, not yet sent
	idleAt        time.Time      // earliest time to send idle
	progress      bool           // something new was sent

	batch capture.Batch // being assembled
	last  oplogPosition // its end
	bytes int
}

// run sends batches until the context ends, the span ends (errSpanEnd), or the cursor
// fails.
func (st *stream) run(ctx context.Context) error {
	defer func() { st.closeCursor(ctx) }()
	for {
		if st.isAtEnd(&st.at) {
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
		if st.limitPayloads && len(a.events) > 0 { // the large event was among them, or comes later
			st.limitPayloads = false
			st.closeCursor(ctx)
		}
	}
}

// open opens a cursor after the last sent position, on the replica set that Open saw.
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
	if was := st.src.server.origin(); !now.hasOrigin(was) {
		return fault.Lostf("server is %s, was %s", now.origin(), was)
	}
	if err := now.checkReached(ctx, &st.at); err != nil {
		return err
	}
	if st.cursor, err = openCursor(ctx, now, st.src.plan.pipeline(&st.at, st.limitPayloads), st.src.cfg.Name); err != nil {
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

// reportConnected reports the first answer, which proves that the oplog reaches back.
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

// handleBatch sends the events of an answer. If there is nothing to send, the end of the
// answer becomes a position without rows.
func (st *stream) handleBatch(ctx context.Context, a cursorBatch) error {
	now, before := time.Now(), st.at
	for _, raw := range a.events {
		doc, ok := raw.DocumentOK()
		if !ok {
			return &fault.UnreadableLogError{Err: errors.New("event is not a document")}
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

// event adds an event to the batch and sends the batch when it is full. It drops events up
// to the last sent position; they occur if the stream started at a time and not at a token.
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

	if reason := e.lossReason(p, st.db.Name()); reason != "" {
		if err := st.flush(ctx); err != nil {
			return err
		}
		return fault.Lostf("%s", reason)
	}

	switch {
	case e.collection == markCollection:
		if id, _ := e.document.Lookup("_id").StringValueOK(); id != st.src.cfg.Name {
			return nil // another relay's
		}
		token, _ := e.document.Lookup(fieldMark).StringValueOK()
		st.batch.Marks, st.batch.Marked, st.last = append(st.batch.Marks, token), e.at, e.place
		return st.flush(ctx) // in a batch, marks follow the rows
	case st.src.watching:
		return st.addChanges(ctx, &e, now)
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
	for i, r := range st.src.plan.readers[e.collection] { // each has appended one item
		st.src.resume.DropLargeContent(&items[before+i], r.outbox)
		size += items[before+i].ContentBytes()
	}

	if before > 0 && (st.src.resume.SeparatePositions || len(items) > st.src.cfg.MaxBatchRows || st.bytes+size > st.src.cfg.MaxBatchBytes) {
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
	if len(b.Items) == 0 && len(b.Changes) == 0 && len(b.Marks) == 0 {
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

// sendBlocking waits for the receiver. After pauseTimeout it closes the cursor; another is
// opened once the receiver has taken everything that this one brought.
func (st *stream) sendBlocking(ctx context.Context, b capture.Batch) error {
	pause := time.NewTimer(pauseTimeout)
	defer pause.Stop()
	for {
		select {
		case st.out <- b:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
			st.closeCursor(ctx)
		}
	}
}

// handleIdle handles an answer without rows and markers: its token becomes a position
// without rows.
func (st *stream) handleIdle(token bson.Raw, now time.Time) error {
	p, err := parseToken(token, st.src.plan.hash)
	if err != nil {
		return &fault.UnreadableLogError{Err: err}
	}

	// A token with an event's time says no more than the event's own.
	if last := cmp.Or(st.idle, &st.at); p.at.After(last.at) {
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
	default: // a later position replaces it
		if st.isAtEnd(st.idle) {
			st.at = *st.idle
		}
	}

	return nil
}

// isAtEnd reports whether the span ends at or before a position.
func (st *stream) isAtEnd(p *oplogPosition) bool { return st.until != nil && p.compare(st.until) >= 0 }

// sendAlive sends an empty batch to a waiting receiver to show that the server is alive.
func (st *stream) sendAlive() {
	select {
	case st.out <- capture.Batch{}:
	default:
	}
}
