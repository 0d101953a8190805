package capturetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// HistoryHarness creates databases for RunHistory. Each of their sources is a
// capture.HistoryReader.
type HistoryHarness struct {
	// Setup creates an empty outbox table in a separate database.
	Setup func(t *testing.T) Database
	// ReadsFromTime declares that the log can be read from a time on. RunHistoryLost may
	// then read the log from its start up to that time, so the server should have little
	// log.
	ReadsFromTime bool
	// Parallel declares that a source receives little of the writes to other databases. The
	// tests of RunHistory then run in parallel, because they mostly wait.
	Parallel bool
	// Readers counts the readers of the relay's log in this database: sessions, cursors,
	// slots. It is 1 while only the relay reads. A slot that only retains log does not
	// count.
	Readers func(t *testing.T, db Database) int
	// Disconnect closes the connections of history readers. It may close that of the relay's
	// own source too.
	Disconnect func(t *testing.T, db Database)
	// Delete deletes rows from the outbox table.
	Delete func(t *testing.T, db Database, ids []string)
	// Shutdown creates a database whose server stop shuts down gracefully. stop returns the
	// duration. Nil skips the test.
	Shutdown func(t *testing.T) (db Database, stop func() time.Duration)
	// Losses are ways to lose the log after a position, by name. No source runs meanwhile.
	Losses map[string]func(t *testing.T, db Database, at capture.StartPoint)
	// OtherLogs are ways to make a position belong to another log. Each returns the database
	// to read from.
	OtherLogs map[string]func(t *testing.T, db Database, at *capture.StartPoint) Database
}

// RunHistory runs the tests of capture.HistoryReader, except those of RunHistoryLost.
func RunHistory(t *testing.T, h HistoryHarness) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, h HistoryHarness)
	}{
		{"exact beside writers", testRangeExact},
		{"restart after each batch", testRangeParts},
		{"two readers of one start point", testRangeTwoReaders},
		{"pause", testRangePaused},
		{"leaves nothing", testRangeLeavesNothing},
		{"disconnected", testRangeDisconnected},
		{"empty range", testRangeEmpty},
	} {
		t.Run(c.name, func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			c.test(t, h)
		})
	}
}

// RunHistoryLost runs the tests of capture.HistoryReader in which the log is read from a
// time on, is lost or replaced, or its server shuts down. Setup may create all databases on
// one server. Shutdown runs last and may stop that server.
func RunHistoryLost(t *testing.T, h HistoryHarness) {
	t.Run("a time", func(t *testing.T) { testRangeSince(t, h) })
	for _, name := range slices.Sorted(maps.Keys(h.Losses)) {
		t.Run("lost/"+name, func(t *testing.T) { testRangeLost(t, h, h.Losses[name]) })
	}
	for _, name := range slices.Sorted(maps.Keys(h.OtherLogs)) {
		t.Run("another log/"+name, func(t *testing.T) { testRangeOtherLog(t, h, h.OtherLogs[name]) })
	}
	if h.Shutdown != nil {
		t.Run("shutdown", func(t *testing.T) { testRangeShutdown(t, h) })
	}
}

// RunHistoryLayout runs the tests of capture.HistoryReader that depend on the layout of the
// table.
func RunHistoryLayout(t *testing.T, h HistoryHarness) { testRangeExact(t, h) }

// live is a running relay's source. A separate goroutine receives and acknowledges
// everything at once.
type live struct {
	t      *testing.T
	db     Database
	src    Source
	origin string
	out    chan capture.Batch
	stop   context.CancelFunc
	work   sync.WaitGroup
	err    error         // of Follow, once it has ended
	news   chan struct{} // holds a signal after a batch

	mu    sync.Mutex
	ids   []string
	marks map[string]marked
	last  store.Position
}

// marked is the position of a marker.
type marked struct {
	at   store.Position
	rows int // rows received before the marker
}

func runLive(t *testing.T, db Database) *live {
	t.Helper()
	l := &live{
		t: t, db: db, src: db.Source(t, Options{Outbox: outbox, BatchRows: batchRows}),
		out: make(chan capture.Batch), news: make(chan struct{}, 1), marks: map[string]marked{},
	}

	o := open(t, l.src, db, store.Checkpoint{})
	l.origin, l.last = o.Origin, o.From
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.work.Go(func() {
		l.err = capture.Follow(ctx, l.src, o.From, l.out, l)
		close(l.out)
	})

	l.work.Go(func() {
		for b := range l.out {
			l.take(b)
		}
	})

	t.Cleanup(l.end)
	return l
}

// Connected implements capture.Observer.
func (l *live) Connected() {}

// Disconnected implements capture.Observer.
func (l *live) Disconnected(err error, _ time.Duration) { l.t.Logf("the relay's source: %v", err) }

func (l *live) take(b capture.Batch) {
	l.mu.Lock()
	for i := range b.Items {
		l.ids = append(l.ids, b.Items[i].ID)
	}
	if b.Position != "" {
		l.last = b.Position
		l.src.Acknowledge(b.Position)
	}
	for _, token := range b.Marks {
		l.marks[token] = marked{b.Position, len(l.ids)}
	}
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// mark writes a marker, waits until it is received, and returns its position.
func (l *live) mark(token string) store.Position {
	l.t.Helper()
	if err := l.src.Mark(l.t.Context(), token); err != nil {
		l.t.Fatal(err)
	}
	var m marked
	l.until("marker "+token, func() (there bool) {
		m, there = l.marks[token]
		return there
	})
	return m.at
}

// until waits until a condition on the received rows holds.
func (l *live) until(what string, holds func() bool) {
	l.t.Helper()
	timeout := time.After(waitTimeout)
	for {
		l.mu.Lock()
		held := holds()
		l.mu.Unlock()
		if held {
			return
		}
		select {
		case <-l.news:
		case <-timeout:
			l.mu.Lock()
			received := len(l.ids)
			l.mu.Unlock()
			l.t.Fatalf("waiting for %s: %d rows received", what, received)
		}
	}
}

// rows returns the ids received between two markers.
func (l *live) rows(from, until string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ids[l.marks[from].rows:l.marks[until].rows])
}

// inFront is the prefix of the ids of rows before a start point.
const inFront = "in front of "

// startPoint makes the server retain the log from now on, if the source is a SlotRetainer. It
// returns the start point at a marker that it writes.
func (l *live) startPoint(token string) capture.StartPoint {
	l.t.Helper()
	var slot string
	if retainer, ok := l.src.(capture.SlotRetainer); ok {
		var err error
		if slot, err = retainer.RetainLog(l.t.Context(), token); err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { l.drop(token) })
	}
	commit(l.t, l.db, rowsOf(inFront+token, 2)...)
	return capture.StartPoint{Checkpoint: store.Checkpoint{Origin: l.origin, Position: l.mark(token)}, Slot: slot}
}

// drop releases the retained log with a source that was not opened.
func (l *live) drop(name string) {
	src := l.db.Source(l.t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	if err := src.(capture.SlotRetainer).ReleaseLog(context.Background(), name); err != nil {
		l.t.Logf("retained log %s not released: %v", name, err)
	}
}

// end ends the source. It may be called again.
func (l *live) end() {
	if l.stop == nil {
		return
	}
	l.stop()
	l.stop = nil
	l.work.Wait()
	l.src.Close()
	if !errors.Is(l.err, context.Canceled) {
		l.t.Errorf("the relay's source ended with %v", l.err)
	}
}

// expectIntact ends the source and checks that its log is intact from its last position and that
// the server no longer retains the acknowledged log.
func (l *live) expectIntact() {
	l.t.Helper()
	l.mark("end")
	const maxBytes = 100 << 10
	for end := time.Now().Add(waitTimeout); ; <-time.After(100 * time.Millisecond) {
		retained, err := l.src.Retained(l.t.Context())
		if err == nil && retained.Bytes <= maxBytes {
			break
		}
		if err != nil || time.Now().After(end) { // other tests write to the log too
			l.t.Errorf("everything is acknowledged, but %+v is retained, %v", retained, err)
			break
		}
	}

	l.end()
	src := l.db.Source(l.t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	if o := open(l.t, src, l.db, store.Checkpoint{Origin: l.origin, Position: l.last}); o.View != nil {
		l.t.Errorf("the relay's log is no longer intact: %s", o.SnapshotReason)
	}
}
