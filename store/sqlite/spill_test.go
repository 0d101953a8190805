package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
)

// plainTable is a table that keeps no state.
const plainTable = `CREATE TABLE plain (id INTEGER PRIMARY KEY, topic TEXT, owner TEXT, payload BLOB);`

func plainBox() store.Outbox {
	return store.Outbox{Name: "plain", Table: "plain", Layout: store.Layout{
		Name: "plain", State: store.StateNone,
		Columns: store.Columns{ID: "id", Kind: "topic", Group: "owner", Payload: "payload"},
	}}
}

// spillItem returns a row of a lane, to be spilled.
func (r *rig) spillItem(id string, group string, n int64) store.Item {
	return store.Item{Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Group: store.GroupOf(group), Seq: store.NewSeq(r.epoch, n)}
}

func (r *rig) spill(t testing.TB, items ...store.Item) {
	t.Helper()
	if err := r.store.Spill(ctx(t), r.epoch, items); err != nil {
		t.Fatal(err)
	}
}

// laneOf is the lane of the rows of spillItem.
func laneOf(group string) store.LaneKey {
	return store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(group)}
}

// spilled returns the ids of a lane's spilled rows.
func (r *rig) spilled(t testing.TB, lane store.LaneKey) []string {
	t.Helper()
	lanes, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: lane.Outbox, Lane: lane.Hash()}}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, it := range lanes[0] {
		list = append(list, it.ID)
	}
	return list
}

func (r *rig) countSpilled(t testing.TB) int {
	return ask[int](t, r.db, "SELECT count(*) FROM sluicebox_spilled")
}

func wantIDs(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestSpilledRowIsReadBackUnchanged: a row is read back as it was spilled. The payload is stored only for tables
// that keep no state.
func TestSpilledRowIsReadBackUnchanged(t *testing.T) {
	r := newRig(t, flowTable+plainTable, 0, flowBox(), plainBox())
	at := time.Date(2024, 2, 29, 12, 0, 0, 123456789, time.UTC)
	for i, it := range []store.Item{
		{Ref: store.Ref{Outbox: "events", ID: "1"}, Kind: "EVENT", Payload: []byte("{}"), PayloadSize: 2, RetryCount: 3, Committed: at},
		{Ref: store.Ref{Outbox: "events", ID: ""}, Kind: "", Group: store.GroupOf("")},
		{Ref: store.Ref{Outbox: "events", ID: "a'\x00\"ü☃"}, Kind: "k\x00", Group: store.GroupOf("g'\x00\xff"), Committed: at.In(time.FixedZone("x", 3600))},
		{Ref: store.Ref{Outbox: "plain", ID: "1"}, Kind: "k", Payload: []byte("\x00\xff\x10"), PayloadSize: 3, Committed: at},
		{Ref: store.Ref{Outbox: "plain", ID: "2"}, Kind: "k", Payload: []byte{}},
		{Ref: store.Ref{Outbox: "plain", ID: "3"}, Kind: "k", PayloadSize: 1 << 30}, // dropped to save memory
		{Ref: store.Ref{Outbox: "plain", ID: "4"}, Kind: "k", Payload: []byte("text"), PayloadSize: 4},
	} {
		it.Seq, it.Captured, it.Txn = store.NewSeq(r.epoch, int64(i+1)), time.Now(), 77
		r.spill(t, it)
		again := it
		again.RetryCount = 9
		r.spill(t, again)
		again.ID = "another"
		var refused *store.RefusedError
		if err := r.store.Spill(ctx(t), r.epoch, []store.Item{again}); !asRefused(err, &refused) {
			t.Errorf("another row under a number: %v", err)
		}
		from := store.SpilledRange{Outbox: it.Outbox, Lane: it.Lane().Hash(), After: it.Seq - 1}
		lanes, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{from}, 10)
		if err != nil || len(lanes) != 1 || len(lanes[0]) != 1 {
			t.Fatalf("row %q: %+v, %v", it.ID, lanes, err)
		}
		want := it
		want.Captured, want.Txn = time.Time{}, 0
		if !want.Committed.IsZero() {
			want.Committed = want.Committed.UTC()
		}
		if it.Outbox == "events" {
			want.Payload = nil
		}
		if got := lanes[0][0]; !reflect.DeepEqual(got, want) {
			t.Errorf("spilled\n%#v, got\n%#v", want, got)
		}
	}
}

// TestRelaysSpillSeparately: relays of different names on one file have separate spilled rows.
func TestRelaysSpillSeparately(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	other := &rig{db: r.db, store: openStore(t, r.path, "other", 0, flowBox())}
	var err error
	if other.epoch, err = other.store.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1'), ('2'), ('3')")
	one, two := r.spillItem("1", "a", 1), r.spillItem("2", "a", 2)
	r.spill(t, one, two)
	other.spill(t, one)
	check := func(r *rig, spilled, shown []string) {
		t.Helper()
		wantIDs(t, "spilled", r.spilled(t, laneOf("a")), spilled...)
		wantIDs(t, "shown", r.unsettled(t, nil), shown...)
		var lanes []store.SpilledLane
		err := r.store.SpilledLanes(ctx(t), func(l store.SpilledLane) { lanes = append(lanes, l) })
		want := []store.SpilledLane{{Outbox: "events", Kind: "EVENT", Hash: laneOf("a").Hash(), Rows: len(spilled)}}
		if err != nil || len(spilled) > 0 && !reflect.DeepEqual(lanes, want) || len(spilled) == 0 && len(lanes) > 0 {
			t.Errorf("the lanes are %+v, %v", lanes, err)
		}
	}
	check(r, []string{"1", "2"}, []string{"3"})
	check(other, []string{"1"}, []string{"2", "3"})
	o := outcome("1", store.Completed)
	o.SpilledSeq = one.Seq
	r.settle(t, o)
	if n, err := r.store.DeleteSpilledAfter(ctx(t), r.epoch, store.Checkpoint{Seq: 0}); err != nil || n != 1 {
		t.Errorf("%d rows were forgotten, %v", n, err)
	}
	check(r, nil, []string{"2", "3"})
	check(other, []string{"1"}, []string{"2", "3"})
	if err := other.store.DeleteSpilled(ctx(t), other.epoch, refsOf([]store.Item{one})); err != nil {
		t.Error(err)
	}
	check(other, nil, []string{"2", "3"})
}

func TestSpillErrors(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	unknown, numberless := r.spillItem("1", "a", 1), r.spillItem("two", "a", 1)
	unknown.Outbox, numberless.Seq = "nowhere", 0
	fine := r.spillItem("3", "a", 3)
	_, each := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events"}}, 0)
	_, from := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "nowhere"}}, 1)
	for part, err := range map[string]error{
		`spill rows: no outbox "nowhere"`:          r.store.Spill(ctx(t), r.epoch, []store.Item{fine, unknown}),
		`row "two" of outbox events has no seq`:    r.store.Spill(ctx(t), r.epoch, []store.Item{fine, numberless}),
		`delete spilled rows: no outbox "nowhere"`: r.store.DeleteSpilled(ctx(t), r.epoch, []store.SpilledRef{{Ref: unknown.Ref, Seq: 1}}),
		"each lane is 0":                           each,
		`read spilled rows: no outbox "nowhere"`:   from,
		"spill rows: not the leader":               r.store.Spill(ctx(t), r.epoch-1, []store.Item{fine}),
		"delete spilled rows: not the leader":      r.store.DeleteSpilled(ctx(t), r.epoch-1, []store.SpilledRef{{Ref: fine.Ref, Seq: fine.Seq}}),
		"after seq 0: not the leader": func() error {
			_, err := r.store.DeleteSpilledAfter(ctx(t), r.epoch-1, store.Checkpoint{Seq: 0})
			return err
		}(),
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %q", err, part)
		}
	}
	if n := r.countSpilled(t); n != 0 {
		t.Errorf("%d rows are spilled", n)
	}
	r.spill(t)
	if lanes, err := r.store.ReadSpilled(ctx(t), nil, 1); err != nil || len(lanes) != 0 {
		t.Errorf("no lane: %v, %v", lanes, err)
	}
	r.exec(t, "INSERT INTO sluicebox_queue VALUES ('rig', '', 'events', x'01', 1, '1', 'EVENT', NULL, 0, 0, NULL, NULL, NULL)")
	if err := r.store.SpilledLanes(ctx(t), func(store.SpilledLane) {}); err == nil || !strings.Contains(err.Error(), "not a lane hash") {
		t.Errorf("a lane that is none: %v", err)
	}
}

// TestRefusedOutcomeKeepsSpilledRow: a spilled row stays if its outcome was not written.
func TestRefusedOutcomeKeepsSpilledRow(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "CREATE TRIGGER t BEFORE UPDATE ON outbox_events WHEN OLD.id = 'bad' BEGIN SELECT RAISE(ABORT, 'not this one'); END")
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('good'), ('bad')")
	good, bad := r.spillItem("good", "a", 1), r.spillItem("bad", "a", 2)
	r.spill(t, good, bad)
	outcomes := []store.Outcome{outcome("good", store.Completed), outcome("bad", store.Completed)}
	outcomes[0].SpilledSeq, outcomes[1].SpilledSeq = good.Seq, bad.Seq
	var refused *store.RefusedError
	if _, err := r.store.Settle(ctx(t), r.epoch, outcomes); !errors.As(err, &refused) {
		t.Errorf("a row that a trigger keeps: %v", err)
	}
	wantIDs(t, "after a refusal", r.spilled(t, laneOf("a")), "good", "bad")
	r.settle(t, outcomes[0])
	wantIDs(t, "after the outcome of one", r.spilled(t, laneOf("a")), "bad")
}

// manySpillItems returns rows of several lanes, more than fit into one transaction.
func (r *rig) manySpillItems(n, lanes int) []store.Item {
	items := make([]store.Item, n)
	for i := range items {
		items[i] = r.spillItem(fmt.Sprintf("%06d", i), fmt.Sprint(i%lanes), int64(i+1))
	}
	return items
}

// TestClaimsRunDuringSpill: a claim runs while many rows are spilled. No row is spilled after
// another relay becomes leader.
func TestClaimsRunDuringSpill(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('live')")
	items := r.manySpillItems(40_000, 7)
	done := make(chan error, 1)
	go func() { done <- r.store.Spill(ctx(t), r.epoch, items) }()
	for r.countSpilled(t) == 0 && len(done) == 0 {
	}
	if a := r.claim(t, row("live"))[0]; a.Result != store.Claimed {
		t.Errorf("the row is %s", a.Result)
	}
	if len(done) > 0 {
		t.Error("the claim had to wait for all of them")
	}
	rival := openStore(t, r.path, "rig", 0, flowBox())
	epoch, err := rival.AcquireLeadership(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	found := r.countSpilled(t)
	if err := <-done; !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("the old leader: %v", err)
	}
	if n := r.countSpilled(t); n != found || n == 0 || n == len(items) {
		t.Errorf("%d rows are spilled, the new leader found %d of %d", n, found, len(items))
	}
	r.store, r.epoch = rival, epoch
	lanes, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events", Lane: items[0].Lane().Hash()}}, len(items))
	if err != nil || len(lanes[0]) < found/7 {
		t.Fatalf("%d rows of the first lane, %v", len(lanes[0]), err)
	}
	for i, it := range lanes[0] { // a prefix of the lane, without a gap
		if it.Ref != items[i*7].Ref {
			t.Fatalf("row %d of the lane is %s, want %s", i, it.ID, items[i*7].ID)
		}
	}
	r.spill(t, items...)
	if n := r.countSpilled(t); n != len(items) {
		t.Errorf("%d rows are spilled, want %d", n, len(items))
	}
	if err := r.store.DeleteSpilled(ctx(t), r.epoch, refsOf(items)); err != nil || r.countSpilled(t) != 0 {
		t.Errorf("%d rows are left, %v", r.countSpilled(t), err)
	}
}

func refsOf(items []store.Item) []store.SpilledRef {
	refs := make([]store.SpilledRef, len(items))
	for i := range items {
		refs[i] = store.SpilledRef{Ref: items[i].Ref, Seq: items[i].Seq}
	}
	return refs
}

// TestCancelledSpillIsRepeated: a cancelled call can be repeated.
func TestCancelledSpillIsRepeated(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	items := r.manySpillItems(20_000, 3)
	c, cancel := context.WithCancel(ctx(t))
	done := make(chan error, 1)
	go func() { done <- r.store.Spill(c, r.epoch, items) }()
	for r.countSpilled(t) == 0 && len(done) == 0 {
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if n := r.countSpilled(t); n == 0 || n == len(items) {
		t.Fatalf("%d rows are spilled; the test proved nothing", n)
	}
	r.spill(t, items...)
	if n := r.countSpilled(t); n != len(items) {
		t.Errorf("%d rows are spilled, want %d", n, len(items))
	}
}

// TestDeleteSpilledAfter: exactly the rows that the log brings again are deleted.
func TestDeleteSpilledAfter(t *testing.T) {
	r := newRig(t, flowTable+plainTable, 0, flowBox(), plainBox())
	const n = 1001
	items := r.manySpillItems(n, 3)
	for i := range items {
		if i%4 == 0 {
			items[i].Outbox = "plain"
		}
	}
	r.spill(t, items...)
	other := openStore(t, r.path, "other", 0, flowBox())
	epoch, err := other.AcquireLeadership(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Spill(ctx(t), epoch, items[1:2]); err != nil {
		t.Fatal(err)
	}
	one := openStore(t, r.path, "rig", 0, plainBox())
	for _, c := range []struct {
		st    *sqlite.Store
		after store.Seq
		want  int
	}{
		{r.store, items[n-1].Seq, 0}, {r.store, items[n-2].Seq, 1}, {one, items[n-9].Seq, 1},
		{r.store, items[n-9].Seq, 6}, {r.store, items[99].Seq, n - 9 + 1 - 100}, {r.store, 0, 100},
	} {
		epoch, err := c.st.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.st.DeleteSpilledAfter(ctx(t), epoch, store.Checkpoint{Seq: c.after}); err != nil || got != c.want {
			t.Errorf("behind %d: %d rows, %v, want %d", c.after, got, err, c.want)
		}
		if left := ask[int](t, r.db, "SELECT count(*) FROM sluicebox_spilled WHERE name = 'rig' AND seq <= ?", int64(c.after)); left != int(c.after-items[0].Seq)+1 && c.after != 0 {
			t.Errorf("behind %d: %d rows are left below", c.after, left)
		}
	}
	if left := r.countSpilled(t); left != 1 {
		t.Errorf("%d rows are left, want the other relay's", left)
	}
}

// TestSpilledLookupUsesIndex: an index serves the lookup of spilled rows, whatever their number.
func TestSpilledLookupUsesIndex(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	lane := laneOf("a")
	hash := lane.Hash()
	r.exec(t, `WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 100000)
		INSERT INTO sluicebox_queue SELECT 'rig', '', 'events', ?, i, printf('%06d', i), 'EVENT', 'a', 0, 0, NULL, NULL, NULL FROM c`, hash[:])
	r.exec(t, `INSERT INTO outbox_events (id) SELECT id FROM sluicebox_spilled WHERE seq % 100 = 0; INSERT INTO outbox_events (id) VALUES ('free')`)
	var refs []store.SpilledRef
	var outcomes []store.Outcome
	var from []store.SpilledRange
	for i := 1; i <= 500; i++ {
		ref := store.Ref{Outbox: "events", ID: fmt.Sprintf("%06d", 101*i)}
		refs = append(refs, store.SpilledRef{Ref: ref, Seq: store.Seq(101 * i)})
		outcomes = append(outcomes, store.Outcome{Ref: store.Ref{Outbox: "events", ID: fmt.Sprintf("%06d", 101*i+1)}, Status: store.Completed, SpilledSeq: store.Seq(101*i + 1)})
		from = append(from, store.SpilledRange{Outbox: "events", Lane: hash, After: store.Seq(100 * i)})
	}
	quick := func(what string, do func() error) {
		t.Helper()
		began := time.Now()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > 2*time.Second { // a scan for each would read 500 times 100 000 rows
			t.Errorf("%s took %s", what, took)
		}
	}
	quick("a view", func() error { wantIDs(t, "the view", r.unsettled(t, nil), "free"); return nil })
	quick("ReadSpilled", func() error { _, err := r.store.ReadSpilled(ctx(t), from, 1); return err })
	quick("DeleteSpilled", func() error { return r.store.DeleteSpilled(ctx(t), r.epoch, refs) })
	quick("Settle", func() error { r.settle(t, outcomes...); return nil })
	quick("DeleteSpilledAfter", func() error {
		for after := 100_000; after > 99_900; after-- {
			if _, err := r.store.DeleteSpilledAfter(ctx(t), r.epoch, store.Checkpoint{Seq: store.Seq(after)}); err != nil {
				return err
			}
		}
		return nil
	})
	if n := r.countSpilled(t); n != 100_000-1000-99 {
		t.Errorf("%d rows are left", n)
	}
}
