package capturetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// testRangeSince reads from a time on, and from a time at which several transactions were
// committed. A time before the start of the log is lost.
func testRangeSince(t *testing.T, h HistoryHarness) {
	db := h.Setup(t)
	l := runLive(t, db)
	commit(t, db, rowsOf("early", 3)...)
	since := time.Now().Truncate(time.Second).Add(2 * time.Second) // some logs have a resolution of one second
	<-time.After(time.Until(since.Add(time.Millisecond)))
	late := rowsOf("late", 2*batchRows)
	commit(t, db, late...)
	for i := range 4 {
		rows := rowsOf(fmt.Sprintf("later-%d", i), 2)
		commit(t, db, rows...)
		late = append(late, rows...)
	}

	until := l.mark("until")
	for _, long := range []time.Time{time.Unix(1e9, 0), {}} {
		expectLost(t, db, capture.StartPoint{Since: long}, until)
	}
	if !h.ReadsFromTime {
		expectLost(t, db, capture.StartPoint{Since: since}, until)
		return
	}

	items := readSince(t, db, since, until)
	var ids []string
	for i := range items {
		ids = append(ids, items[i].ID)
	}

	sameOrder(t, ids, idsOf(late))
	second := items[len(items)-5].Committed // the commit time of the second of the four transactions
	same := slices.DeleteFunc(items, func(it store.Item) bool { return it.Committed.Before(second) })
	t.Logf("%d of %d rows are of %s or later", len(same), len(late), second)
	again := readSince(t, db, second, until)
	if !slices.EqualFunc(again, same, func(a, b store.Item) bool { return a.ID == b.ID && a.Committed.Equal(b.Committed) }) {
		t.Errorf("%d rows received that are of the second transaction's time or later, want %d", len(again), len(same))
	}
	l.expectIntact()
}

// readSince reads the rows that were committed at a time or later.
func readSince(t *testing.T, db Database, since time.Time, until store.Position) []store.Item {
	t.Helper()
	r := newReading(t, db, capture.StartPoint{Since: since}, until)
	r.begin()
	if err := r.rest(); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(r.items, func(it store.Item) bool { return it.Committed.Before(since) })
}

// historyErrors returns the errors of CheckReachable and ReadRange for a start point.
func historyErrors(t *testing.T, db Database, at capture.StartPoint, until store.Position) (reach, again error) {
	t.Helper()
	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	reach = src.(capture.HistoryReader).CheckReachable(t.Context(), at)
	r := newReading(t, db, at, until)
	r.begin()
	again = r.rest()
	t.Logf("Reach: %v", reach)
	t.Logf("Again: %v", again)
	if len(r.items) > 0 {
		t.Errorf("%d rows received", len(r.items))
	}
	return reach, again
}

func expectLost(t *testing.T, db Database, at capture.StartPoint, until store.Position) {
	t.Helper()
	reach, again := historyErrors(t, db, at, until)
	for _, err := range []error{reach, again} {
		var lost *capture.LostError
		if !errors.As(err, &lost) || strings.TrimSpace(lost.Reason) == "" {
			t.Errorf("%v, want a lost log", err)
		}
	}
}

func testRangeLost(t *testing.T, h HistoryHarness, lose func(*testing.T, Database, capture.StartPoint)) {
	db := h.Setup(t)
	from, until := ended(t, db)
	lose(t, db, from)
	expectLost(t, db, from, until)
}

// ended returns the start point before a transaction and the position after it, of a relay
// whose source has ended.
func ended(t *testing.T, db Database) (from capture.StartPoint, until store.Position) {
	t.Helper()
	l := runLive(t, db)
	from = l.startPoint("from")
	commit(t, db, rowsOf("part", 2)...)
	until = l.mark("until")
	l.end()
	return from, until
}

func testRangeOtherLog(t *testing.T, h HistoryHarness, other func(*testing.T, Database, *capture.StartPoint) Database) {
	db := h.Setup(t)
	from, until := ended(t, db)
	at := from
	there := other(t, db, &at)
	reach, again := historyErrors(t, there, at, until)
	for _, err := range []error{reach, again} {
		var origin *capture.OriginError
		if !errors.As(err, &origin) || strings.TrimSpace(origin.Reason) == "" {
			t.Errorf("%v, want another origin", err)
		}
	}
}
