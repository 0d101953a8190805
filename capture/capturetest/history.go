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

// HistoryHarness makes databases for RunHistory, whose sources are a capture.Past each.
type HistoryHarness struct {
	// Setup makes an empty outbox table in a database of its own.
	Setup func(t *testing.T) Database
	// ReadsFromTime says that the log can be read from a time on. For RunHistoryLost, the server is
	// to have little of it then: it may be read from its begin to the time.
	ReadsFromTime bool
	// Parallel says that a source gets little of what is written into other databases. The
	// tests of RunHistory run beside each other then: they wait for most of their time.
	Parallel bool
	// Readers counts what reads the log of the database for its relay: sessions,
	// cursors, slots. It is 1 beside a relay. What only keeps the log is none.
	Readers func(t *testing.T, db Database) int
	// Disconnect ends the connections of those who read the log once more, and maybe that of
	// the relay's own source.
	Disconnect func(t *testing.T, db Database)
	// Delete deletes rows from the outbox table.
	Delete func(t *testing.T, db Database, ids []string)
	// Shutdown makes a database whose server stop shuts down in an orderly way, and
	// tells how long that took. Nil leaves the test of it out.
	Shutdown func(t *testing.T) (db Database, stop func() time.Duration)
	// Losses are ways in which the log behind a place is lost, by name. No source runs
	// meanwhile.
	Losses map[string]func(t *testing.T, db Database, at capture.StartPoint)
	// OtherLogs are ways in which a place becomes one of another log. They return the
	// database to look in.
	OtherLogs map[string]func(t *testing.T, db Database, at *capture.StartPoint) Database
}

// RunHistory runs the part of the suite that reads the log once more, but for what
// RunHistoryLost runs.
func RunHistory(t *testing.T, h HistoryHarness) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, h HistoryHarness)
	}{
		{"exact beside writers", testAgainExact},
		{"parts of a transaction", testAgainParts},
		{"two readers of one place", testAgainTwice},
		{"a pause", testAgainPaused},
		{"nothing is left", testAgainLeavesNothing},
		{"cut", testAgainCut},
		{"a part of nothing", testAgainNothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			c.test(t, h)
		})
	}
}

// RunHistoryLost runs the part of it in which the log is read from a time on, is lost, is
// another one, or its server ends. Setup may make all databases on one server, and
// Stopping, which comes last, may stop that.
func RunHistoryLost(t *testing.T, h HistoryHarness) {
	t.Run("a time", func(t *testing.T) { testAgainSince(t, h) })
	for _, name := range slices.Sorted(maps.Keys(h.Losses)) {
		t.Run("lost/"+name, func(t *testing.T) { testAgainLost(t, h, h.Losses[name]) })
	}
	for _, name := range slices.Sorted(maps.Keys(h.OtherLogs)) {
		t.Run("another log/"+name, func(t *testing.T) { testAgainOther(t, h, h.OtherLogs[name]) })
	}
	if h.Shutdown != nil {
		t.Run("shutdown", func(t *testing.T) { testAgainShutdown(t, h) })
	}
}

// RunHistoryLayout runs the part of it that a table's layout has a say in.
func RunHistoryLayout(t *testing.T, h HistoryHarness) { testAgainExact(t, h) }

// live is a relay's source that runs: all that comes is received and acknowledged at
// once, on a goroutine of its own.
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

// marked is where a marker came.
type marked struct {
	at   store.Position
	rows int // that came before it
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

// mark writes a marker, waits until it has come, and returns its position.
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

// until waits until something holds of what has come.
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
			came := len(l.ids)
			l.mu.Unlock()
			l.t.Fatalf("waiting for %s: %d rows came", what, came)
		}
	}
}

// rows returns those that came between two markers.
func (l *live) rows(from, until string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ids[l.marks[from].rows:l.marks[until].rows])
}

// gtidsBefore begins the ids of rows in front of a place.
const inFront = "in front of "

// place has the log kept from now on, if that is how it stays, and returns the place of
// a marker that it writes.
func (l *live) place(token string) capture.StartPoint {
	l.t.Helper()
	var kept string
	if keeper, ok := l.src.(capture.SlotRetainer); ok {
		var err error
		if kept, err = keeper.RetainLog(l.t.Context(), token); err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { l.drop(token) })
	}
	commit(l.t, l.db, rowsOf(inFront+token, 2)...)
	return capture.StartPoint{Checkpoint: store.Checkpoint{Origin: l.origin, Position: l.mark(token)}, Slot: kept}
}

// drop gives up what is kept, with a source that was not opened.
func (l *live) drop(name string) {
	src := l.db.Source(l.t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	if err := src.(capture.SlotRetainer).ReleaseLog(context.Background(), name); err != nil {
		l.t.Logf("what is kept under %s stays: %v", name, err)
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

// whole ends the source and checks that its log is intact from where it was, and that
// it acknowledged what is kept no longer.
func (l *live) whole() {
	l.t.Helper()
	l.mark("end")
	const little = 100 << 10 // bytes
	for end := time.Now().Add(waitTimeout); ; <-time.After(100 * time.Millisecond) {
		kept, err := l.src.Retained(l.t.Context())
		if err == nil && kept.Bytes <= little {
			break
		}
		if err != nil || time.Now().After(end) { // other tests write into the log too
			l.t.Errorf("all is acknowledged, and %+v is retained, %v", kept, err)
			break
		}
	}
	l.end()
	src := l.db.Source(l.t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	if o := open(l.t, src, l.db, store.Checkpoint{Origin: l.origin, Position: l.last}); o.View != nil {
		l.t.Errorf("the relay's log is no longer whole: %s", o.SnapshotReason)
	}
}
