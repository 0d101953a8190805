package capturetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// relayReaders is the number of readers without a history reader.
const relayReaders = 1

// testRangeExact reads a range that begins and ends between the commits of writers, while
// they keep writing and the relay reads and acknowledges. The range must equal the rows that
// the relay received, in the same order, also after they are deleted.
func testRangeExact(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	l.mark("begin")
	stop := writeOn(t, db)
	from := l.startPoint("from")
	few := len(l.rows("begin", "from")) + 50
	l.until("rows of the writers", func() bool { return len(l.ids) > few })
	until := l.mark("until")
	want := l.rows("from", "until")
	r := newReading(t, db, from, until)
	r.begin()
	r.expectRest(want)
	order := stop()
	l.mark("all")
	all := slices.DeleteFunc(l.rows("begin", "all"), func(id string) bool { return strings.HasPrefix(id, inFront) })
	sameOrder(t, all, order)
	t.Logf("%d of %d rows are in the part", len(want), len(order))
	if len(want) == 0 || len(want) == len(order) {
		t.Error("the range has no row, or all rows; the test proved nothing")
	}

	for i := range r.items {
		if it := &r.items[i]; it.Outbox != outbox || string(it.Payload) == "" || it.PayloadSize != len(it.Payload) || it.Committed.IsZero() {
			t.Errorf("row %s is incomplete: %+v", it.ID, it)
		}
	}

	h.Delete(t, db, want)
	again := newReading(t, db, from, until)
	again.begin()
	again.expectRest(want)
	l.expectIntact()
}

// writeOn commits rows with four writers until stop is called. stop returns the ids in
// commit order.
func writeOn(t *testing.T, db Database) (stop func() []string) {
	var stopping atomic.Bool
	done := make(chan []string, 1)
	go func() { done <- writersUntil(t, db, 4, 5, stopping.Load, none) }()
	stop = sync.OnceValue(func() []string {
		stopping.Store(true)
		return <-done
	})
	t.Cleanup(func() { stop() })
	return stop
}

// threeParts commits a transaction larger than a batch between two small ones. It returns
// the start point before them, the position after them and the ids of the rows.
func threeParts(l *live) (from capture.StartPoint, until store.Position, want []string) {
	l.t.Helper()
	from = l.startPoint("from")
	for _, rows := range [][]Row{rowsOf("first", 2), rowsOf("huge", 5*batchRows+7), rowsOf("last", 2)} {
		commit(l.t, l.db, rows...)
		want = append(want, idsOf(rows)...)
	}
	return from, l.mark("until"), want
}

// testRangeParts restarts the reader after every batch. No row may be missing or repeated,
// also inside a transaction.
func testRangeParts(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	from, until, want := threeParts(l)
	r := newReading(t, db, from, until)
	parts, inside := 0, 0
	for {
		r.begin()
		ended, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if ended {
			break
		}
		parts++
		if r.at.Skip > 0 {
			inside++
		}
		r.cancel()
	}

	t.Logf("%d batches, %d of them inside of a transaction", parts, inside)
	if parts < len(want)/batchRows {
		t.Error("the transaction did not come in parts; the test proved nothing")
	}

	var ids []string
	for i := range r.items {
		ids = append(ids, r.items[i].ID)
	}

	sameOrder(t, ids, want)
	l.expectIntact()
}

func testRangeTwoReaders(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	from, until, want := threeParts(l)
	one, two := newReading(t, db, from, until), newReading(t, db, from, until)
	for _, r := range []*reading{one, two} {
		r.begin()
		if ended, err := r.next(); ended {
			t.Fatal(err)
		}
	}
	// The server's list may miss a session, or still have an ended one. A reader that waits for long ends its session.
	for end := time.Now().Add(waitTimeout); h.Readers(t, db) < relayReaders+2; <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got %d readers of the log, want two more than %d", h.Readers(t, db), relayReaders)
		}
	}
	one.expectRest(want)
	two.expectRest(want)
	third := newReading(t, db, from, until)
	third.begin()
	third.expectRest(want)
	h.expectReaders(t, db, relayReaders)
	l.expectIntact()
}

// testRangePaused pauses a reader for longer than any source keeps its connection or cursor.
// The relay's log is discarded meanwhile.
func testRangePaused(t *testing.T, h HistoryHarness) {
	const pause = 11 * time.Second
	db := h.Setup(t)
	l := runLive(t, db)
	from, until, want := threeParts(l)
	r := newReading(t, db, from, until)
	r.begin()
	if ended, err := r.next(); ended {
		t.Fatal(err)
	}
	commit(t, db, largeRows("behind")...)
	<-time.After(pause) // the pause under test
	l.expectIntact()
	r.expectRest(want)
}

// expectReaders waits for a number of readers, because a server may need a moment to end
// closed sessions.
func (h *HistoryHarness) expectReaders(t *testing.T, db Database, want int) {
	t.Helper()
	for end := time.Now().Add(waitTimeout); ; <-time.After(200 * time.Millisecond) {
		got := h.Readers(t, db)
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %d readers of the log, want %d", got, want)
		}
	}
}

// testRangeLeavesNothing ends a reader at its start, and while it waits for its receiver.
func testRangeLeavesNothing(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	from, until, _ := threeParts(l)
	for batches := range 2 {
		r := newReading(t, db, from, until)
		r.begin()
		for range batches {
			if ended, err := r.next(); ended {
				t.Fatal(err)
			}
		}
		r.stop()
		if err := <-r.done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		r.done <- nil // for cancel
		r.cancel()
	}

	other := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	defer other.Close()
	if err := other.(capture.HistoryReader).CheckReachable(t.Context(), from); err != nil {
		t.Errorf("start point not reachable: %v", err)
	}

	h.expectReaders(t, db, relayReaders)
	if err := l.src.(capture.HistoryReader).CheckReachable(t.Context(), from); err != nil {
		t.Errorf("start point not reachable by the relay's own source: %v", err)
	}
	l.expectIntact()
}

// testRangeDisconnected closes the connection. The result is an ordinary error, and another reader
// continues.
func testRangeDisconnected(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	from := l.startPoint("from")
	var want []string
	for i := range 34 { // 17 MiB, because MongoDB sends up to 16 MiB at once
		rows := rowsOf(fmt.Sprintf("large-%02d", i), 1)
		rows[0].Payload = string(make512k('x'))
		commit(t, db, rows...)
		want = append(want, rows[0].ID)
	}

	until := l.mark("until")
	r := newReading(t, db, from, until)
	r.begin()
	if ended, err := r.next(); ended {
		t.Fatal(err)
	}

	h.Disconnect(t, db)
	err := r.rest()
	t.Log(err)
	if err == nil || capture.IsFinal(err) {
		t.Fatalf("the connection was closed, and the source ended with %v", err)
	}

	h.expectReaders(t, db, relayReaders)
	r.begin()
	r.expectRest(want)
	l.expectIntact()
}

// testRangeShutdown checks that a history reader never delays a graceful shutdown of the
// server, even if nothing receives its batches. It ends without an error if it had read the
// whole range by then.
func testRangeShutdown(t *testing.T, h HistoryHarness) {
	db, stop := h.Shutdown(t)
	l := runLive(t, db)
	from := l.startPoint("from")
	for i := range 20 {
		rows := rowsOf(fmt.Sprintf("large-%d", i), 1)
		rows[0].Payload = string(make512k('x'))
		commit(t, db, rows...)
	}

	r := newReading(t, db, from, l.mark("until"))
	r.begin()
	if ended, err := r.next(); ended {
		t.Fatal(err)
	}

	took := stop()
	t.Logf("the shutdown took %s", took)
	if took > maxShutdownTime {
		t.Errorf("the shutdown took %s", took)
	}
	if err := r.rest(); capture.IsFinal(err) {
		t.Errorf("the server was stopped, and the source ended with %v", err)
	}
}

// testRangeEmpty reads an empty range, and ranges that end before they start.
func testRangeEmpty(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	first := l.mark("first")
	from := l.startPoint("from")
	for _, until := range []store.Position{from.Position, first, l.mark("second")} {
		r := newReading(t, db, from, until)
		r.begin()
		r.expectRest(nil)
	}
	l.expectIntact()
}
