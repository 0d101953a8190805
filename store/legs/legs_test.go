package legs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
)

// rig is a store whose outbox orders has the routes of a test.
type rig struct {
	*Store
	t      *testing.T
	tables *fakeTables
	open   func(Options) *Store
	epoch  store.Epoch
}

// newRig takes routes such as "a b? c", of which b is optional, and begins after "any: " if one
// required leg suffices.
func newRig(t *testing.T, routes string) *rig {
	box := store.Outbox{Name: "orders", Table: "orders", Layout: store.FlowCatalyst()}
	routes, box.AnyRequired = strings.CutPrefix(routes, "any: ")
	for _, name := range strings.Fields(routes) {
		name, optional := strings.CutSuffix(name, "?")
		box.Routes = append(box.Routes, store.Route{Name: name, Optional: optional})
	}
	r := &rig{t: t}
	r.tables, r.open = newTables(box)
	r.restart()
	return r
}

// restart begins with nothing in memory.
func (r *rig) restart() {
	r.t.Helper()
	r.Store = r.open(Options{})
	var err error
	if r.epoch, err = r.AcquireLeadership(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// reopen restarts with another configuration of the outbox.
func (r *rig) reopen(box store.Outbox) {
	r.t.Helper()
	r.Store = New(r.Store.Store, []store.Outbox{box}, Options{})
}

func (r *rig) set(names string) store.LegSet { return r.tables.box.RouteSet(strings.Fields(names)) }

// begin takes a row that all legs match, and returns the legs whose lanes get it.
func (r *rig) begin(id string, row Row) string {
	r.t.Helper()
	row.Ref = store.Ref{Outbox: "orders", ID: id}
	if row.Matched == 0 {
		row.Matched = store.AllLegs(len(r.tables.box.Routes))
	}
	if r.tables.status(id) == 0 {
		r.tables.set(id, store.Pending)
	}
	to, err := r.Begin(r.t.Context(), r.epoch, []Row{row})
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Join(r.plans["orders"].names(to[0]), " ")
}

func (r *rig) ref(leg, id string) store.Ref { return store.Ref{Outbox: "orders/" + leg, ID: id} }

func (r *rig) item(leg, id string) store.Item {
	return store.Item{Ref: r.ref(leg, id), Kind: "EVENT", Payload: []byte("x" + id), PayloadSize: 1 + len(id), Seq: store.Seq(10 + len(id))}
}

func (r *rig) claim(leg, id string) store.ClaimAnswer {
	r.t.Helper()
	answers, err := r.Claim(r.t.Context(), r.epoch, time.Now(), []store.ClaimRow{{Ref: r.ref(leg, id)}})
	if err != nil {
		r.t.Fatal(err)
	}
	return answers[0]
}

// end ends a leg: a "!" behind its name means FAILED, and a "*" that the row has a copy.
func (r *rig) end(leg, id string) store.SettleResult {
	r.t.Helper()
	leg, failed := strings.CutSuffix(leg, "!")
	leg, copied := strings.CutSuffix(leg, "*")
	it := r.item(leg, id)
	o := store.Outcome{Ref: it.Ref, Status: store.Completed}
	if failed {
		o.Status, o.Error, o.Row = store.Failed, "broken", &it
	}
	if copied {
		o.SpilledSeq = it.Seq
	}
	results, err := r.Settle(r.t.Context(), r.epoch, []store.Outcome{o})
	if err != nil {
		r.t.Fatal(err)
	}
	return results[0]
}

func (r *rig) spill(leg, id string) {
	r.t.Helper()
	if err := r.Spill(r.t.Context(), r.epoch, []store.Item{r.item(leg, id)}); err != nil {
		r.t.Fatal(err)
	}
}

// known returns the record of a row.
func (r *rig) known(id string) *store.LegRow {
	r.t.Helper()
	rows, err := r.LegRows(r.t.Context(), []store.Ref{{Outbox: "orders", ID: id}})
	if err != nil {
		r.t.Fatal(err)
	}
	return rows[0]
}

// want compares the status of a row, and its record as "done/failed/spilled", "" for none.
func (r *rig) want(id string, status store.Status, record string) {
	r.t.Helper()
	got := ""
	if k := r.known(id); k != nil {
		got = strings.Join(k.Done, " ") + "/" + strings.Join(k.Failed, " ") + "/" + strings.Join(k.Spilled, " ")
	}
	if is := r.tables.status(id); is != status || got != record {
		r.t.Errorf("row %s is %s with the record %q, want %s with %q", id, is, got, status, record)
	}
}

func (r *rig) wantBegin(got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("the row goes to the lanes of %q, want %q", got, want)
	}
}

// TestStatus: the ends of legs and the status that they give the row.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		routes, ends string
		want         []store.Status // after each end
	}{
		{"a", "a", []store.Status{store.Completed}},
		{"a", "a!", []store.Status{store.Failed}},
		{"a b", "a b", []store.Status{store.Pending, store.Completed}},
		{"a b", "a! b", []store.Status{store.Pending, store.Failed}},
		{"a b", "b a!", []store.Status{store.Pending, store.Failed}},
		{"a b? c", "c a! b", []store.Status{store.Pending, store.Failed, store.Failed}},
		{"a b?", "b a", []store.Status{store.Pending, store.Completed}},
		{"a b?", "a b!", []store.Status{store.Completed, store.Completed}},
		{"a b?", "b! a", []store.Status{store.Pending, store.Completed}},
		{"any: a b", "a b!", []store.Status{store.Completed, store.Completed}},
		{"any: a b", "a! b", []store.Status{store.Pending, store.Completed}},
		{"any: a b", "a! b!", []store.Status{store.Pending, store.Failed}},
		{"any: a b c?", "c a! b!", []store.Status{store.Pending, store.Pending, store.Failed}},
		{"a? b?", "a! b", []store.Status{store.Pending, store.Completed}}, // no required leg
		{"a? b?", "b a", []store.Status{store.Completed, store.Completed}},
		{"a? b?", "a! b!", []store.Status{store.Pending, store.Failed}},
	} {
		t.Run(c.routes+": "+c.ends, func(t *testing.T) {
			r := newRig(t, c.routes)
			r.begin("1", Row{})
			for i, leg := range strings.Fields(c.ends) {
				if got := r.end(leg, "1"); got != store.Written {
					t.Errorf("end of %s: result %d", leg, got)
				}
				if got := r.tables.status("1"); got != c.want[i] {
					t.Errorf("after %s the row is %s, want %s", leg, got, c.want[i])
				}
			}
			if len(r.rows) > 0 {
				t.Error("a join is left in memory")
			}
		})
	}
}

// TestOneWriteForAllLegs: three legs cost one claim and one outcome, and no record.
func TestOneWriteForAllLegs(t *testing.T) {
	r := newRig(t, "a b c")
	r.begin("1", Row{})
	for _, leg := range []string{"a", "b", "c"} {
		if a := r.claim(leg, "1"); a.Result != store.Claimed || a.RetryCount != 0 {
			t.Errorf("claim of %s: %+v", leg, a)
		}
	}
	for _, leg := range []string{"b", "c", "a"} {
		r.end(leg, "1")
	}
	if r.want("1", store.Completed, ""); r.tables.statements != 2 {
		t.Errorf("%d statements, want 2", r.tables.statements)
	}
}

// TestPassedLegIsDone: after a restart a leg whose mark has passed the row is done, whatever the
// number under which the row is read again.
func TestPassedLegIsDone(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.end("a", "1")
	r.restart()
	r.wantBegin(r.begin("1", Row{Passed: r.set("a")}), "b")
	r.end("b", "1")
	r.want("1", store.Completed, "")
}

// TestSettledRowGoesToOptionalLeg: COMPLETED says nothing of an optional leg that has not passed
// the row, before and after a restart.
func TestSettledRowGoesToOptionalLeg(t *testing.T) {
	r := newRig(t, "a b?")
	r.begin("1", Row{})
	r.end("a", "1")
	if a := r.claim("b", "1"); a.Result != store.Claimed || !a.Unwritten {
		t.Errorf("claim of a COMPLETED row for an optional leg: %+v", a)
	}
	r.restart()
	r.wantBegin(r.begin("1", Row{Passed: r.set("a"), Settled: true}), "b")
	r.restart()
	r.wantBegin(r.begin("1", Row{Settled: true}), "b") // nobody knows who settled it
	if a := r.claim("b", "1"); a.Result != store.Claimed {
		t.Errorf("claim after a restart: %+v", a)
	}
	r.spill("b", "1")
	r.want("1", store.Completed, "a//b")
	r.end("b*", "1")
	r.want("1", store.Completed, "")
}

// TestRowOfAnotherProgram: a row that another program settled is dropped by the legs that must all
// deliver it.
func TestRowOfAnotherProgram(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.spill("b", "1")
	r.tables.set("1", store.Completed)
	if a := r.claim("a", "1"); a.Result != store.AlreadySettled {
		t.Errorf("claim of a settled row: %+v", a)
	}
	r.want("1", store.Completed, "a//b")
	if err := r.DeleteSpilled(t.Context(), r.epoch, []store.SpilledRef{{Ref: r.ref("b", "1"), Seq: r.item("b", "1").Seq}}); err != nil {
		t.Fatal(err)
	}
	r.want("1", store.Completed, "")
}

// TestLostLog: after a snapshot the record says which legs had the row. A leg that held it in memory
// gets it from the table, or a copy if the row is settled there.
func TestLostLog(t *testing.T) {
	r := newRig(t, "a b c")
	r.begin("1", Row{})
	r.end("a", "1")
	r.spill("b", "1")
	r.want("1", store.Pending, "a//b")
	r.restart()
	if err := r.AdoptMissing(t.Context(), r.epoch); err != nil {
		t.Fatal(err)
	}
	r.want("1", store.Pending, "a//b")
	if shown := r.tables.unsettled(t.Context(), r.Missing("orders")...); !slices.Equal(shown, []string{"1"}) {
		t.Errorf("a view shows the rows %q, want the one that is missing a leg", shown)
	}
	r.tables.set("1", store.Completed)
	if err := r.AdoptMissing(t.Context(), r.epoch); err != nil {
		t.Fatal(err)
	}
	r.want("1", store.Completed, "a//b c")
	if missing := r.Missing("orders"); len(missing) > 0 {
		t.Errorf("%q are missing a leg", missing)
	}
	r.tables.set("1", store.Pending)
	r.wantBegin(r.begin("1", Row{Known: r.known("1")}), "")
	r.end("c*", "1")
	r.end("b*", "1")
	r.want("1", store.Completed, "")
}

// TestRetriesOfLegs: each leg has its own counted retries, which outlive a restart.
func TestRetriesOfLegs(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	for n := 1; n <= 2; n++ {
		o := store.Outcome{Ref: r.ref("b", "1"), Status: store.Pending, RetryCount: n, Error: "late"}
		if results, err := r.Settle(t.Context(), r.epoch, []store.Outcome{o}); err != nil || results[0] != store.Written {
			t.Fatal(results, err)
		}
	}
	r.restart()
	r.begin("1", Row{Known: r.known("1")})
	if a, b := r.claim("a", "1"), r.claim("b", "1"); a.RetryCount != 0 || b.RetryCount != 2 {
		t.Errorf("retries of a and b: %d and %d, want 0 and 2", a.RetryCount, b.RetryCount)
	}
	r.end("b", "1")
	r.end("a", "1")
	r.want("1", store.Completed, "")
}

// TestDeliveredCopyWaits: a leg that delivered its copy is done in the record until the row has its
// outcome, which deletes the record in the same transaction.
func TestDeliveredCopyWaits(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.spill("b", "1")
	r.end("b*", "1")
	r.want("1", store.Pending, "b//")
	r.restart()
	r.wantBegin(r.begin("1", Row{Known: r.known("1")}), "a")
	r.tables.fault = unwritten
	o := store.Outcome{Ref: r.ref("a", "1"), Status: store.Completed}
	if _, err := r.Settle(t.Context(), r.epoch, []store.Outcome{o}); err == nil {
		t.Error("an outcome without an answer is written")
	}
	r.want("1", store.Pending, "b//")
	r.end("a", "1")
	r.want("1", store.Completed, "")
}

// TestCopyOfRowInFlight: a row that is spilled while its request is in flight leaves nothing of its
// join in memory, and its end still completes the row.
func TestCopyOfRowInFlight(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.end("a", "1")
	r.spill("b", "1")
	if len(r.rows) > 0 {
		t.Error("a spilled row keeps its join in memory")
	}
	if got := r.end("b*", "1"); got != store.Written {
		t.Errorf("result %d", got)
	}
	r.want("1", store.Completed, "")
}

// TestRequeueOfLeg: the leg alone gets the row again, and the row is PENDING meanwhile.
func TestRequeueOfLeg(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.end("b!", "1")
	r.end("a", "1")
	r.want("1", store.Failed, "a/b/")
	r.restart()
	items, err := r.Requeue(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/b"}, 10)
	if err != nil || len(items) != 1 || string(items[0].Payload) != "x1" {
		t.Fatalf("requeued %+v, %v", items, err)
	}
	r.want("1", store.Pending, "a//b")
	r.wantBegin(r.begin("1", Row{Known: r.known("1")}), "")
	r.end("b*", "1")
	r.want("1", store.Completed, "")
}

// TestRequeueCutShort: after a requeue that changed only the row, the leg's row is FAILED still, and
// a second requeue completes it.
func TestRequeueCutShort(t *testing.T) {
	r := newRig(t, "a")
	r.begin("1", Row{})
	r.end("a!", "1")
	r.tables.set("1", store.Pending)
	r.restart()
	if items, err := r.Requeue(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/a"}, 1); err != nil || len(items) != 1 {
		t.Fatal(items, err)
	}
	if a := r.claim("a", "1"); a.Result != store.Claimed {
		t.Errorf("claim: %+v", a)
	}
	r.end("a*", "1")
	r.want("1", store.Completed, "")
}

// TestFailedRowSetBack: a FAILED row that is PENDING again without an end of a leg, because an operator
// set it back or a requeue was cut short, goes to the legs that had failed, once the log or a sweep
// brings it. Their FAILED records go, and the other legs do not get it.
func TestFailedRowSetBack(t *testing.T) {
	for _, swept := range []bool{false, true} {
		r := newRig(t, "a b c?")
		r.begin("1", Row{})
		for _, end := range []string{"a", "b!", "c!"} {
			r.end(end, "1")
		}
		r.want("1", store.Failed, "a/b c/")
		r.restart()
		r.wantBegin(r.begin("1", Row{Unmarked: swept, Known: r.known("1")}), "") // FAILED, and not known to be settled
		r.tables.set("1", store.Pending)
		r.wantBegin(r.begin("1", Row{Unmarked: swept, Known: r.known("1")}), "b c")
		for _, leg := range []string{"b", "c"} {
			letters, err := r.Failed(t.Context(), store.DeadLetterFilter{Outbox: "orders/" + leg}, 10, false)
			if err != nil || len(letters) > 0 {
				t.Errorf("FAILED rows of %s: %+v, %v", leg, letters, err)
			}
			if a := r.claim(leg, "1"); a.Result != store.Claimed || a.RetryCount != 0 {
				t.Errorf("claim of %s: %+v", leg, a)
			}
			r.end(leg, "1")
		}
		r.want("1", store.Completed, "")
		if len(r.rows) > 0 {
			t.Error("a join is left in memory")
		}
	}
}

// TestDiscardOfLeg: the row goes once no leg is left that may deliver it.
func TestDiscardOfLeg(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.end("a!", "1")
	r.end("b!", "1")
	for _, leg := range []string{"a", "b"} {
		refs, err := r.Discard(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/" + leg}, 10)
		if err != nil || len(refs) != 1 {
			t.Fatal(refs, err)
		}
		if leg == "a" {
			r.want("1", store.Failed, "/b/")
		}
	}
	r.want("1", 0, "")
}

// TestGiveBack: the row is PENDING again once no leg has it, and not before.
func TestGiveBack(t *testing.T) {
	r := newRig(t, "a b")
	r.begin("1", Row{})
	r.claim("a", "1")
	r.claim("b", "1")
	back := func(leg string, want store.Status) {
		t.Helper()
		results, err := r.Settle(t.Context(), r.epoch, []store.Outcome{{Ref: r.ref(leg, "1"), Status: store.Pending}})
		if got := r.tables.status("1"); err != nil || results[0] != store.Written || got != want {
			t.Errorf("after %s gave it back the row is %s, want %s: %v, %v", leg, got, want, results, err)
		}
	}
	back("b", store.Processing)
	back("a", store.Pending)
	r.claim("a", "1")
	r.end("b", "1")
	back("a", store.Processing)
}

// TestUnmarkedRowWaits: the outcome of a row that no mark covers waits for all legs, and each end is
// recorded.
func TestUnmarkedRowWaits(t *testing.T) {
	r := newRig(t, "a b?")
	r.begin("1", Row{Unmarked: true})
	r.end("a", "1")
	r.want("1", store.Pending, "a//")
	r.restart()
	r.wantBegin(r.begin("1", Row{Unmarked: true, Known: r.known("1")}), "b")
	r.end("b", "1")
	r.want("1", store.Completed, "")
}

// TestLegsAtOnce: legs that claim, spill and settle the same rows at once complete every row, and
// leave nothing.
func TestLegsAtOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	const rows = 300
	r := newRig(t, "a b c?")
	for n := range rows {
		r.begin(fmt.Sprint(n), Row{})
	}
	var all sync.WaitGroup
	for i, leg := range []string{"a", "b", "c"} {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for _, at := range slices.Collect(slices.Chunk(rng.Perm(rows), 7)) {
				if err := r.deliverAll(t.Context(), leg, at, rng); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for n := range rows {
		if r.want(fmt.Sprint(n), store.Completed, ""); t.Failed() {
			return
		}
	}
	if len(r.rows) > 0 {
		t.Errorf("%d joins are left in memory", len(r.rows))
	}
}

// deliverAll claims rows for a leg, perhaps spills them, and settles them until all are written.
func (r *rig) deliverAll(ctx context.Context, leg string, rows []int, rng *rand.Rand) error {
	var claims []store.ClaimRow
	var items []store.Item
	for _, n := range rows {
		it := r.item(leg, fmt.Sprint(n))
		it.Seq = store.Seq(n + 1)
		claims, items = append(claims, store.ClaimRow{Ref: it.Ref}), append(items, it)
	}
	if _, err := r.Claim(ctx, r.epoch, time.Now(), claims); err != nil {
		return err
	}
	spills := rng.IntN(3) == 0
	if spills {
		if err := r.Spill(ctx, r.epoch, items); err != nil {
			return err
		}
	}
	for len(items) > 0 {
		outcomes := make([]store.Outcome, len(items))
		for i := range items {
			outcomes[i] = store.Outcome{Ref: items[i].Ref, Status: store.Completed}
			if spills {
				outcomes[i].SpilledSeq = items[i].Seq
			}
		}
		results, err := r.Settle(ctx, r.epoch, outcomes)
		if err != nil {
			return err
		}
		var left []store.Item
		for i, result := range results {
			if result.NeedsRetry() {
				left = append(left, items[i])
			}
		}
		items = left
	}
	return nil
}
