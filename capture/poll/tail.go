package poll

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Tail reads a table of events without a state by position, as a log: each row once, in the order
// of the transactions that inserted them and of their ids. See store.Layout.ReadsByPosition.
//
// A position is a transaction and an id. A read ends before the oldest open transaction, so no
// row can come to lie below a position that was passed, in whatever order transactions commit. A
// transaction that is open for long therefore delays the rows of all younger ones. Nothing is
// retained on the server.
type Tail struct {
	cfg    Config
	outbox *store.Outbox
	views  store.Viewer
	resume capture.Resume
	woken  chan struct{}

	mu    sync.Mutex
	marks []*tailMark // requested, not yet sent
}

// tailMark is a marker. Once the transactions below bound have ended and their rows were sent, all
// rows that were committed before the request have been.
type tailMark struct {
	token string
	bound uint64 // 0 before the first read after the request
}

var _ capture.Resumer = (*Tail)(nil)

// NewTail returns a source of a valid configuration whose outboxes ReadsByPosition accepts.
func NewTail(cfg Config, views store.Viewer) *Tail {
	return &Tail{cfg: cfg, outbox: &cfg.Outboxes[0], views: views, woken: make(chan struct{}, 1)}
}

// ReadsByPosition reports whether a Tail polls the outboxes, and no other source can.
func ReadsByPosition(outboxes []store.Outbox) bool {
	return len(outboxes) == 1 && outboxes[0].MessagePrefix == "" && outboxes[0].Layout.ReadsByPosition()
}

// tailOrigin is the origin of checkpoints. Positions of a log have another one.
const tailOrigin = "position"

// Open continues at the checkpoint. Without one it begins at the oldest open transaction, and
// saves that position at once, because no later start could find the rows behind it.
func (s *Tail) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	view, err := tables.View(ctx, "")
	if err != nil {
		return capture.OpenResult{}, err
	}
	xmin, xmax, err := bounds(view.Position())
	view.Close()
	if err != nil {
		return capture.OpenResult{}, &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: this database does not show the order of its transactions, which polling by position needs", s.outbox.Name),
			Remedy:  "let the relay read the log: source.mode: stream",
		}
	}

	reason := "no checkpoint of polling by position"
	if at.Origin == tailOrigin && at.Position != "" {
		place, err := parsePlace(at.Position)
		if err == nil && place.Txn <= xmax {
			s.resume.Reset(at.Position)
			return capture.OpenResult{Origin: tailOrigin, From: at.Position}, nil
		}
		reason = fmt.Sprintf("checkpoint %s is of another database, whose transactions are ahead of this one's (%d)", at.Position, xmax)
	}
	from := placeOf(xmin, "")
	if err := tables.ClearCheckpoint(ctx); err != nil {
		return capture.OpenResult{}, err
	}
	if err := tables.Keep(ctx, store.Checkpoint{Origin: tailOrigin, Position: from}, nil); err != nil {
		return capture.OpenResult{}, err
	}
	s.resume.Reset(from)
	return capture.OpenResult{Origin: tailOrigin, From: from, SnapshotReason: reason}, nil
}

// Run reads at once, then at once after a full batch, and otherwise on the schedule of the package.
// A failed read ends it.
func (s *Tail) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if err := s.resume.RefuseSeparate("table " + s.outbox.Table); err != nil {
		return err
	}
	at, err := parsePlace(s.resume.Start(s, span.From))
	if err != nil {
		return err
	}
	next := &schedule{outbox: s.outbox}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for connected := false; ; connected = true {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.woken:
			next.wake(time.Now())
		case <-wait.C:
		}
		began := time.Now()
		b, more, err := s.read(ctx, &at)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if !connected {
			s.resume.Connected()
		}
		now := time.Now()
		next.recordRead(&s.cfg, len(b.Items), more, now.Sub(began), now)
		if err := s.send(ctx, out, b); err != nil {
			return err
		}
		wait.Reset(time.Until(next.due))
	}
}

// read reads the rows behind a place, which it advances, and the markers that follow them.
func (s *Tail) read(ctx context.Context, at *store.RowPlace) (b capture.Batch, more bool, err error) {
	marks := s.pendingMarks() // before opening the view, which shows everything committed by then
	view, err := s.views.View(ctx, "")
	if err != nil {
		return b, false, err
	}
	defer view.Close()
	xmin, xmax, err := bounds(view.Position())
	if err != nil {
		return b, false, err
	}
	q := store.UnsettledQuery{Outbox: s.outbox.Name, Limit: s.cfg.BatchSize, MaxBytes: max(1, s.cfg.Room.Bytes/roomDivisor), After: at}
	if s.cfg.Room.Bytes == 0 {
		q.MaxBytes = 0
	}
	if b.Items, err = view.Unsettled(ctx, q); err != nil {
		return b, false, err
	}

	now := time.Now()
	for i := range b.Items {
		b.Items[i].Captured = now
	}
	if n := len(b.Items); n > 0 {
		*at = store.RowPlace{Txn: uint64(b.Items[n-1].Txn), ID: b.Items[n-1].ID}
	}
	b.Position = placeOf(at.Txn, at.ID)
	if more = q.MayHaveMore(b.Items); more {
		return b, more, nil
	}
	for _, m := range marks {
		if m.bound == 0 {
			m.bound = xmax
		}
		if m.bound <= xmin {
			b.Marks = append(b.Marks, m.token)
		}
	}
	return b, more, nil
}

// send sends a batch. One without rows and markers shows that the source reads.
func (s *Tail) send(ctx context.Context, out chan<- capture.Batch, b capture.Batch) error {
	rows := len(b.Items) // before sending: the receiver then owns the rows
	select {
	case out <- b:
	case <-ctx.Done():
		return ctx.Err()
	}
	if rows > 0 {
		s.resume.Sent(rows, b.Position)
	}
	s.dropMarks(b.Marks)
	return nil
}

// Resume returns the source's Resume.
func (s *Tail) Resume() *capture.Resume { return &s.resume }

// Acknowledge does nothing: there is no log.
func (s *Tail) Acknowledge(store.Position) {}

// Retained returns zero: there is no log.
func (s *Tail) Retained(context.Context) (capture.RetainedLog, error) {
	return capture.RetainedLog{}, nil
}

// Close does nothing: a read has a session of its own.
func (s *Tail) Close() {}

// Mark requests a marker, and wakes the source. It comes back once all transactions have ended
// that were open at the next read.
func (s *Tail) Mark(_ context.Context, token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, &tailMark{token: token})
	select {
	case s.woken <- struct{}{}:
	default:
	}
	return nil
}

func (s *Tail) pendingMarks() []*tailMark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*tailMark(nil), s.marks...)
}

// dropMarks removes markers that were sent, which are the oldest ones.
func (s *Tail) dropMarks(sent []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.marks[len(sent):]
}

// Compare orders two positions.
func (s *Tail) Compare(a, b store.Position) int {
	x, errX := parsePlace(a)
	y, errY := parsePlace(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Or(cmp.Compare(x.Txn, y.Txn), compareIDs(x.ID, y.ID))
}

// compareIDs orders ids, which are integers.
func compareIDs(a, b string) int {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b) // "" is before all others
	}
	return cmp.Compare(x, y)
}

// placeOf returns the position of a place.
func placeOf(txn uint64, id string) store.Position {
	return store.Position(strconv.FormatUint(txn, 10) + "/" + id)
}

func parsePlace(p store.Position) (store.RowPlace, error) {
	txn, id, found := strings.Cut(string(p), "/")
	n, err := strconv.ParseUint(txn, 10, 64)
	if !found || err != nil {
		return store.RowPlace{}, fmt.Errorf("invalid position %q of a table of events", p)
	}
	return store.RowPlace{Txn: n, ID: id}, nil
}

// bounds returns the oldest transaction that a snapshot of PostgreSQL takes for open, and the first
// transaction that began after it.
func bounds(snapshot store.Position) (xmin, xmax uint64, err error) {
	parts := strings.SplitN(string(snapshot), ":", 3)
	if len(parts) == 3 {
		if xmin, err = strconv.ParseUint(parts[0], 10, 64); err == nil {
			if xmax, err = strconv.ParseUint(parts[1], 10, 64); err == nil {
				return xmin, xmax, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("invalid snapshot %q", snapshot)
}
