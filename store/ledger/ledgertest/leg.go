package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// legs is a ledger over the backend whose outbox a has the routes bus and hooks.
type legs struct {
	*bench
	ledger.Store
}

func (b *bench) legs() *legs {
	boxes := []store.Outbox{
		{Name: "a", Table: "a", Layout: store.FlowCatalyst(), Routes: []store.Route{{Name: "bus"}, {Name: "hooks"}}},
		{Name: "b", Table: "b", Layout: store.FlowCatalyst()},
	}
	return &legs{b, ledger.Store{Ledger: ledger.New(ledger.Config{
		Outboxes: boxes, Records: b.leader, Spill: b.leader, Replay: b.leader, BatchRows: 2, BatchBytes: 1 << 20,
	})}}
}

func legItem(outbox string, n int64) store.Item {
	it := row(n, "g")
	it.Outbox, it.Payload, it.RetryCount = outbox, []byte("\x00row\xff "+fmt.Sprint(n)), 0
	it.PayloadSize = len(it.Payload)
	return it
}

func legRow(n int64, done, failed, spilled string) store.LegRow {
	split := func(names string) []string {
		return slices.DeleteFunc(strings.Split(names, " "), func(s string) bool { return s == "" })
	}
	r := store.LegRow{Ref: store.Ref{Outbox: "a", ID: row(n, "").ID}, Matched: []string{"bus", "hooks"}}
	if done != "" {
		r.Done = split(done)
	}
	if failed != "" {
		r.Failed = split(failed)
	}
	if spilled != "" {
		r.Spilled = split(spilled)
	}
	return r
}

// wantLegs compares all records of the outbox a, and the spilled rows as "OUTBOX N" in order.
func (l *legs) wantLegs(t *testing.T, what string, records []store.LegRow, spilled ...string) {
	t.Helper()
	got := map[string]store.LegRow{}
	if err := l.EachLegRow(ctx(t), "a", func(r *store.LegRow) { got[r.ID] = *r }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(records) {
		t.Errorf("%s: %d records, want %d: %+v", what, len(got), len(records), got)
	}
	for _, want := range records {
		if !reflect.DeepEqual(got[want.ID], want) {
			t.Errorf("%s: record %+v, want %+v", what, got[want.ID], want)
		}
	}
	var list []string
	l.view(t, func(ctx context.Context, r ledger.Reader) error {
		list = nil
		rows, err := r.Scan(ctx, ledger.Scan{Queue: ledger.SpilledQueue, Limit: 1000})
		for i := range rows {
			list = append(list, fmt.Sprint(rows[i].Outbox, " ", rows[i].Seq))
		}
		return err
	})
	if !slices.Equal(list, spilled) {
		t.Errorf("%s: spilled %q, want %q", what, list, spilled)
	}
}

func (l *legs) spillLegs(t *testing.T, outbox string, rows ...store.LegRow) {
	t.Helper()
	var items []store.Item
	for _, r := range rows {
		var n int64
		_, _ = fmt.Sscanf(r.ID, "id %d", &n)
		items = append(items, legItem(outbox, n))
	}
	if err := l.SpillLegs(ctx(t), l.epoch, items, rows); err != nil {
		t.Fatal(err)
	}
}

func (l *legs) settleLegs(t *testing.T, ends ...store.LegEnd) {
	t.Helper()
	if err := l.SettleLegs(ctx(t), l.epoch, ends); err != nil {
		t.Fatal(err)
	}
}

// legEnd returns the end of a leg of row n. A Completed one deletes the row's copy.
func legEnd(outbox string, n int64, status store.Status, record *store.LegRow) store.LegEnd {
	it := legItem(outbox, n)
	o := store.Outcome{Ref: it.Ref, Status: status, SpilledSeq: it.Seq, RetryCount: 3}
	if status == store.Failed {
		o.Error, o.Row = "no ☃", &it
	}
	return store.LegEnd{Outcome: o, Of: store.Ref{Outbox: "a", ID: it.ID}, Record: record}
}

// testLegRows: copies and records are written together, and read back by row and by outbox.
func (b *bench) testLegRows(t *testing.T) {
	l := b.legs()
	var rows []store.LegRow
	for n := int64(1); n <= 5; n++ {
		rows = append(rows, legRow(n, "bus", "", "hooks"))
	}
	rows[1].Retries = map[string]store.LegRetry{"hooks": {Count: 4, Error: "late \"☃\""}}
	l.spillLegs(t, "a/hooks", rows...)
	l.spillLegs(t, "a/hooks", rows...) // a lost answer
	l.wantLegs(t, "spilled", rows, "a/hooks 1", "a/hooks 2", "a/hooks 3", "a/hooks 4", "a/hooks 5")

	got, err := l.LegRows(ctx(t), []store.Ref{rows[1].Ref, {Outbox: "b", ID: "id 1"}, rows[4].Ref, {Outbox: "a", ID: "none"}, rows[1].Ref})
	if err != nil || len(got) != 5 || got[1] != nil || got[3] != nil || !reflect.DeepEqual(*got[0], rows[1]) || !reflect.DeepEqual(got[0], got[4]) {
		t.Errorf("records by row: %+v, %v", got, err)
	}
	items, err := l.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "a/hooks", Lane: laneOf("a/hooks").Hash()}}, 9)
	if err != nil || len(items[0]) != 5 || string(items[0][4].Payload) != "\x00row\xff 5" {
		t.Errorf("content of spilled rows of a leg: %+v, %v", items, err)
	}

	err = l.SpillLegs(ctx(t), l.epoch-1, []store.Item{legItem("a/bus", 1)}, []store.LegRow{legRow(1, "", "", "bus")})
	ends := []store.LegEnd{legEnd("a/hooks", 2, store.Completed, nil)}
	if late := l.SettleLegs(ctx(t), l.epoch-1, ends); !errors.Is(err, store.ErrNotLeader) || !errors.Is(late, store.ErrNotLeader) {
		t.Errorf("of an old epoch: %v, %v", err, late)
	}
	l.wantLegs(t, "after an old epoch", rows, "a/hooks 1", "a/hooks 2", "a/hooks 3", "a/hooks 4", "a/hooks 5")

	rows[2] = legRow(3, "bus hooks", "", "")
	l.settleLegs(t, ends[0], legEnd("a/hooks", 3, store.Completed, &rows[2]))
	l.settleLegs(t, ends[0], legEnd("a/hooks", 3, store.Completed, &rows[2])) // a lost answer
	l.wantLegs(t, "two ended", slices.Delete(slices.Clone(rows), 1, 2), "a/hooks 1", "a/hooks 4", "a/hooks 5")
}

// testLegFailed: a FAILED leg is a dead letter with its content. A requeue spills it again, a
// discard removes it, and the row's record says so in the same transaction.
func (b *bench) testLegFailed(t *testing.T) {
	l := b.legs()
	one, two := legRow(1, "bus", "hooks", ""), legRow(2, "", "hooks", "bus")
	l.settleLegs(t, legEnd("a/hooks", 1, store.Failed, &one), legEnd("a/hooks", 2, store.Failed, &two))
	l.wantLetters(t, 1, 2)
	l.wantLegs(t, "FAILED", []store.LegRow{one, two})

	items, err := l.Requeue(ctx(t), l.epoch, store.DeadLetterFilter{Outbox: "a/hooks", IDs: []string{"id 1"}}, 5)
	if err != nil || len(items) != 1 || items[0].Outbox != "a/hooks" || items[0].Seq != 1 || string(items[0].Payload) != "\x00row\xff 1" {
		t.Errorf("requeued %+v, %v", items, err)
	}
	one = legRow(1, "bus", "", "hooks")
	l.wantLegs(t, "requeued", []store.LegRow{one, two}, "a/hooks 1")
	l.wantLetters(t, 2)

	refs, err := l.Discard(ctx(t), l.epoch, store.DeadLetterFilter{Outbox: "a/hooks"}, 5)
	if err != nil || len(refs) != 1 || refs[0].ID != "id 2" {
		t.Errorf("discarded %+v, %v", refs, err)
	}
	two = legRow(2, "", "", "bus")
	two.Discarded = []string{"hooks"}
	l.wantLegs(t, "discarded", []store.LegRow{one, two}, "a/hooks 1")
	l.wantLetters(t)
	l.discardBesideMissing(t, one, two)
}

// discardBesideMissing: the record stays while a leg is missing, and goes with the last FAILED leg.
func (l *legs) discardBesideMissing(t *testing.T, others ...store.LegRow) {
	t.Helper()
	three, four := legRow(3, "", "hooks", ""), legRow(4, "", "hooks", "")
	four.Matched = []string{"hooks"}
	l.settleLegs(t, legEnd("a/hooks", 3, store.Failed, &three), legEnd("a/hooks", 4, store.Failed, &four))
	if refs, err := l.Discard(ctx(t), l.epoch, store.DeadLetterFilter{Outbox: "a/hooks"}, 5); err != nil || len(refs) != 2 {
		t.Errorf("discarded %+v, %v", refs, err)
	}
	three = legRow(3, "", "", "")
	three.Discarded = []string{"hooks"}
	l.wantLegs(t, "discarded beside a missing leg", append(others, three), "a/hooks 1")
}

// testReopenLegs: a FAILED leg that is opened is to deliver the row again, and no dead letter. It may
// fail again.
func (b *bench) testReopenLegs(t *testing.T) {
	l := b.legs()
	one, two, three := legRow(1, "bus", "hooks", ""), legRow(2, "", "hooks", "bus"), legRow(3, "bus", "hooks", "")
	ends := []store.LegEnd{
		legEnd("a/hooks", 1, store.Failed, &one), legEnd("a/hooks", 2, store.Failed, &two), legEnd("a/hooks", 3, store.Failed, &three),
	}
	l.settleLegs(t, ends...)
	refs := []store.Ref{ends[0].Outcome.Ref, ends[1].Outcome.Ref}
	for _, what := range []string{"reopened", "reopened again"} { // a lost answer
		if err := l.ReopenLegs(ctx(t), l.epoch, refs); err != nil {
			t.Fatal(err)
		}
		one, two = legRow(1, "bus", "", ""), legRow(2, "", "", "bus")
		one.Again, two.Again = []string{"hooks"}, []string{"hooks"}
		l.wantLegs(t, what, []store.LegRow{one, two, three})
		l.wantLetters(t, 3)
	}
	if err := l.ReopenLegs(ctx(t), l.epoch-1, []store.Ref{ends[2].Outcome.Ref}); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("by an earlier leader: %v, want %v", err, store.ErrNotLeader)
	}
	l.wantLetters(t, 3)

	one = legRow(1, "bus", "hooks", "")
	l.settleLegs(t, legEnd("a/hooks", 1, store.Failed, &one))
	l.wantLegs(t, "FAILED again", []store.LegRow{one, two, three})
	l.wantLetters(t, 1, 3)
}

// wantLetters compares the dead letters of the leg a/hooks, with their content.
func (l *legs) wantLetters(t *testing.T, rows ...int) {
	t.Helper()
	got, err := l.Failed(ctx(t), store.DeadLetterFilter{Outbox: "a/hooks"}, 10, true)
	if err != nil {
		t.Fatal(err)
	}
	var list, want []string
	for _, d := range got {
		list = append(list, fmt.Sprintf("%s %q %q %d", d.ID, d.Error, d.Payload, d.RetryCount))
	}
	for _, n := range rows {
		want = append(want, fmt.Sprintf(`id %d "no ☃" "\x00row\xff %d" 3`, n, n))
	}
	if !slices.Equal(list, want) {
		t.Errorf("dead letters %q, want %q", list, want)
	}
}

// testLegsAfter: each leg loses the rows behind its own mark, and the records say so.
func (b *bench) testLegsAfter(t *testing.T) {
	l := b.legs()
	var bus, both []store.LegRow
	for n := int64(1); n <= 5; n++ {
		bus, both = append(bus, legRow(n, "", "", "bus")), append(both, legRow(n, "", "", "bus hooks"))
	}
	l.spillLegs(t, "a/bus", bus...)
	l.spillLegs(t, "a/hooks", both...)
	plain := legItem("b", 3)
	if err := l.Spill(ctx(t), l.epoch, []store.Item{legItem("b", 1), plain}); err != nil {
		t.Fatal(err)
	}
	n, err := l.DeleteSpilledAfter(ctx(t), l.epoch, store.Checkpoint{Seq: 2, Legs: map[string]store.LegMark{"a/hooks": {Seq: 4}, "a/bus": {Seq: 2}}})
	if n != 5 || err != nil {
		t.Errorf("%d rows deleted, %v; want 5", n, err)
	}
	want := append(both[:2:2], legRow(3, "", "", "hooks"), legRow(4, "", "", "hooks"))
	left := []string{"a/bus 1", "a/hooks 1", "b 1", "a/bus 2", "a/hooks 2", "a/hooks 3", "a/hooks 4"}
	l.wantLegs(t, "behind their marks", want, left...)
	if n, err := l.DeleteSpilledAfter(ctx(t), l.epoch, store.Checkpoint{Seq: 4}); n != 0 || err != nil {
		t.Errorf("%d rows deleted, %v; want none", n, err)
	}
	if n, err := l.DeleteSpilledAfter(ctx(t), l.epoch, store.Checkpoint{Seq: 1}); n != 4 || err != nil {
		t.Errorf("without marks %d rows deleted, %v; want 4", n, err)
	}
	l.wantLegs(t, "without marks", both[:1], "a/bus 1", "a/hooks 1", "b 1")
}

// testAdoptLegs: a leg that a record is missing gets a copy from another, with its content.
func (b *bench) testAdoptLegs(t *testing.T) {
	l := b.legs()
	rows := []store.LegRow{legRow(1, "", "", "bus"), legRow(2, "hooks", "", "bus"), legRow(3, "", "hooks", "bus"), legRow(4, "", "", "bus"), legRow(5, "", "", "bus")}
	rows[4].Retries = map[string]store.LegRetry{"hooks": {Count: 2}}
	l.spillLegs(t, "a/bus", rows...)
	var ids []string
	for i := range rows {
		ids = append(ids, rows[i].ID)
	}
	if n, err := l.AdoptLegs(ctx(t), l.epoch, "a", ids[1:2]); n != 0 || err != nil {
		t.Errorf("%d copies of a row that all legs have, %v", n, err)
	}
	if n, err := l.AdoptLegs(ctx(t), l.epoch, "a", ids); n != 3 || err != nil {
		t.Errorf("%d copies, %v; want 3", n, err)
	}
	rows[0], rows[3] = legRow(1, "", "", "bus hooks"), legRow(4, "", "", "bus hooks")
	rows[4].Spilled = []string{"bus", "hooks"}
	copies := []string{"a/bus 1", "a/hooks 1", "a/bus 2", "a/bus 3", "a/bus 4", "a/hooks 4", "a/bus 5", "a/hooks 5"}
	l.wantLegs(t, "adopted", rows, copies...)
	items, err := l.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "a/hooks", Lane: laneOf("a/hooks").Hash()}}, 9)
	if err != nil || len(items[0]) != 3 || string(items[0][2].Payload) != "\x00row\xff 5" || items[0][2].RetryCount != 2 {
		t.Errorf("copies: %+v, %v", items, err)
	}
	if n, err := l.AdoptLegs(ctx(t), l.epoch, "a", ids); n != 0 || err != nil {
		t.Errorf("once more: %d copies, %v", n, err)
	}
	l.wantLegs(t, "adopted again", rows, copies...)
}

// testReroute: a spilled row that matches other routes now is spilled for these instead, with its
// content, and its record says so. A route to which the source brings the row again gets no copy, unless
// another leg had the row.
func (b *bench) testReroute(t *testing.T) {
	l := b.legs()
	waits := func(n int64) store.LegRow {
		r := legRow(n, "", "", "hooks")
		r.Matched = []string{"hooks"}
		return r
	}
	l.spillLegs(t, "a/hooks", waits(1), waits(2), waits(3), legRow(4, "", "", "hooks"), waits(5), waits(6), legRow(7, "", "", "hooks"))
	routes := func(it *store.Item) []string {
		if it.ID == row(2, "").ID || it.ID == row(6, "").ID || len(it.Payload) == 0 {
			return nil
		}
		return []string{"bus"}
	}
	again := func(route string, seq store.Seq) bool { return route == "bus" && seq >= 5 }
	if n, err := l.Reroute(ctx(t), l.epoch, "a/hooks", routes, again); n != 5 || err != nil {
		t.Errorf("%d rows, %v; want 5", n, err)
	}
	moved := func(n int64) store.LegRow {
		r := legRow(n, "", "", "bus")
		r.Matched = []string{"bus"}
		return r
	}
	rows := []store.LegRow{moved(1), waits(2), moved(3), moved(4), waits(6), moved(7)}
	copies := []string{"a/bus 1", "a/hooks 2", "a/bus 3", "a/bus 4", "a/hooks 6", "a/bus 7"}
	l.wantLegs(t, "routed", rows, copies...)
	items, err := l.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "a/bus", Lane: laneOf("a/bus").Hash()}}, 9)
	if err != nil || len(items[0]) != 4 || string(items[0][1].Payload) != "\x00row\xff 3" {
		t.Errorf("copies: %+v, %v", items, err)
	}
	if n, err := l.Reroute(ctx(t), l.epoch, "a/hooks", routes, again); n != 0 || err != nil {
		t.Errorf("once more: %d rows, %v", n, err)
	}
}

func laneOf(outbox string) store.LaneKey {
	it := legItem(outbox, 1)
	return it.Lane()
}
