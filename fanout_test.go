package sluicebox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/legs"
)

// fakeJoin gives a row to the legs that have not passed it, and a settled row to none.
type fakeJoin struct {
	begun   []string // what Begin got
	records map[string]*store.LegRow
	asked   []string // ids that were looked up
}

func (j *fakeJoin) Begin(_ context.Context, _ store.Epoch, rows []legs.Row) ([]store.LegSet, error) {
	to := make([]store.LegSet, len(rows))
	for i, r := range rows {
		j.begun = append(j.begun, fmt.Sprintf("%s:%b-%b", r.ID, r.Matched, r.Passed))
		if !r.Settled {
			to[i] = r.Matched &^ r.Passed
		}
	}
	return to, nil
}

func (j *fakeJoin) Placed([]legs.Row) {}

func (j *fakeJoin) LegRows(_ context.Context, refs []store.Ref) ([]*store.LegRow, error) {
	rows := make([]*store.LegRow, len(refs))
	for i, ref := range refs {
		j.asked = append(j.asked, ref.ID)
		rows[i] = j.records[ref.ID]
	}
	return rows, nil
}

// routedFixture is an intake of epoch 7 for the outbox "plain", and "orders" with the routes bus, for
// all rows, and hooks, for rows of the kind "paid".
type routedFixture struct {
	*intake
	*fakeJoin
	trackers *checkpoint.Trackers
	lanes    map[string]*dispatch.Dispatcher
}

func newRoutedFixture(t *testing.T, saved store.Checkpoint) *routedFixture {
	t.Helper()
	opt := Options{Outboxes: []Outbox{
		{Outbox: store.Outbox{Name: "plain"}, Sink: "s"},
		{Outbox: store.Outbox{Name: "orders"}, Routes: []Route{{Name: "bus", Sink: "s"}, {Name: "hooks", Sink: "s", When: route.Rule{Kind: []string{"paid"}}}}},
	}}
	k, freed := newFakeBackend(), make(chan struct{}, 1)
	f := &routedFixture{fakeJoin: &fakeJoin{records: map[string]*store.LegRow{}}, lanes: map[string]*dispatch.Dispatcher{}}
	for name := range opt.routes() {
		f.lanes[name] = dispatch.New(dispatch.DefaultConfig(), k.options(7, true, freed))
	}
	fan, err := opt.newFanOut(f.fakeJoin, f.fakeJoin, false)
	if err != nil {
		t.Fatal(err)
	}
	f.trackers = checkpoint.NewTrackers(saved, byText)
	f.intake = newIntake(f.trackers.Rest(), 7, f.lanes, freed, func(string, int) {})
	f.fan = fan
	fan.connect(7, f.lanes, f.trackers, saved.Legs, byText)
	return f
}

// saved returns a checkpoint with the marks of the legs.
func saved(bus, hooks, unmatched store.Position) store.Checkpoint {
	return store.Checkpoint{Position: min(bus, hooks, unmatched), Legs: map[string]store.LegMark{
		"orders/bus": {Position: bus}, "orders/hooks": {Position: hooks}, "orders/unmatched": {Position: unmatched},
	}}
}

// ofKind returns rows of "orders", of one kind.
func ofKind(kind string, ids ...string) []store.Item {
	items := of("orders", ids...)
	for i := range items {
		items[i].Kind = kind
	}
	return items
}

func (f *routedFixture) expect(t *testing.T, bus, hooks, plain string) {
	t.Helper()
	for name, want := range map[string]string{"orders/bus": bus, "orders/hooks": hooks, "plain": plain} {
		held := f.lanes[name].Held(name)
		slices.Sort(held)
		expectEqual(t, "rows of "+name, strings.Join(held, " "), want)
	}
}

func TestRowsGoToTheLegsThatMatchThem(t *testing.T) {
	f := newRoutedFixture(t, saved("p0", "p0", "p0"))
	b := capture.Batch{Position: "p1", Items: slices.Concat(ofKind("paid", "1"), of("plain", "2"), ofKind("new", "3"))}
	if err := f.appendBatch(t.Context(), &b, b.Position); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "1 3", "1", "2")
	expectEqual(t, "begun", f.begun, "[1:11-0 3:1-0]")
	expectEqual(t, "held", strings.Join(slices.Sorted(slices.Values(f.Held("orders"))), " "), "1 3")
	cp, _ := f.trackers.Watermark()
	expectEqual(t, "mark of the leg without rows", cp.Legs["orders/unmatched"].Position, "p1")
	expectEqual(t, "mark of a leg with rows", cp.Legs["orders/hooks"].Position, "p0")
	expectEqual(t, "checkpoint", cp.Position, "p0")
}

// A leg gets no row again that it had passed, by the position of the row's transaction, also if the
// transaction comes in parts. The records of such rows are read, behind the greatest mark none.
func TestALegDropsWhatItHasPassed(t *testing.T) {
	f := newRoutedFixture(t, saved("p3", "p1", "p3"))
	f.records["2"] = &store.LegRow{Retries: map[string]store.LegRetry{"hooks": {Count: 2}}}
	if err := f.appendBundle(t.Context(), []capture.Batch{
		{Position: "p2", Items: ofKind("paid", "1")},
		{Items: ofKind("paid", "2")}, // a part of the transaction that ends at p3
	}); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "", "1", "")
	if err := f.appendBundle(t.Context(), []capture.Batch{
		{Position: "p3", Items: ofKind("paid", "3")},
		{Position: "p4", Items: ofKind("paid", "4")},
	}); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "4", "1 2 3 4", "")
	expectEqual(t, "looked up", f.asked, "[1 2 3 4]")
	cp, _ := f.trackers.Watermark()
	expectEqual(t, "mark of the leg ahead", cp.Legs["orders/bus"], fmt.Sprint(store.LegMark{Position: "p3", Seq: store.NewSeq(7, 3)}))
	if f.fan.looksUp() {
		t.Error("rows behind the greatest mark are looked up")
	}
}

// A settled row reaches the join, which decides whether a leg needs it nevertheless.
func TestSettledRowsOfLegsReachTheJoin(t *testing.T) {
	f := newRoutedFixture(t, saved("p0", "p0", "p0"))
	f.beginCatchUp(&fakeStatuses{})
	if err := f.appendBundle(t.Context(), []capture.Batch{{Position: "p1", Items: slices.Concat(ofKind("new", "s1", "2"), of("plain", "s3", "4"))}}); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "2", "", "4")
	expectEqual(t, "begun", f.begun, "[s1:1-0 2:1-0]")
}

// While the relay catches up, the records of rows above all marks are read too: a leg may have ended by
// its record before its mark passed the row.
func TestRecordsAboveTheMarksAreRead(t *testing.T) {
	f := newRoutedFixture(t, saved("p0", "p0", "p0"))
	f.beginCatchUp(&fakeStatuses{})
	for _, position := range []store.Position{"p1", "p2"} {
		if err := f.appendBundle(t.Context(), []capture.Batch{{Position: position, Items: ofKind("new", string(position))}}); err != nil {
			t.Fatal(err)
		}
	}
	f.endCatchUp()
	if err := f.appendBundle(t.Context(), []capture.Batch{{Position: "p3", Items: ofKind("new", "p3")}}); err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "looked up", f.asked, "[p1 p2]")
}

// A part of a transaction that waits for its end when the relay has caught up is not lost.
func TestPartsOutliveTheCatchUp(t *testing.T) {
	f := newRoutedFixture(t, saved("p3", "p1", "p3"))
	f.beginCatchUp(&fakeStatuses{})
	f.onMarker = func(string, store.Position, store.Seq) { f.endCatchUp() }
	if err := f.appendBundle(t.Context(), []capture.Batch{{Position: "p1", Marks: []string{"end"}}, {Items: ofKind("paid", "1")}}); err != nil {
		t.Fatal(err)
	}
	in := make(chan capture.Batch, 1)
	in <- capture.Batch{Position: "p2", Items: ofKind("paid", "2")}
	close(in)
	if err := f.run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "", "1 2", "")
}

// threeRoutes are the lanes of three routes of one outbox, each with a sink of its own, in fake time.
type threeRoutes struct {
	*intake
	sinks map[string]*fakeBackend
	in    chan capture.Batch
}

func runThreeRoutes(t *testing.T, buffer int, test func(r *threeRoutes)) {
	t.Helper()
	runRoutes(t, buffer, []Route{{Name: "bus", Sink: "b"}, {Name: "hooks", Sink: "h"}, {Name: "mail", Sink: "m"}}, test)
}

func runRoutes(t *testing.T, buffer int, routes []Route, test func(r *threeRoutes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opt := Options{Outboxes: []Outbox{{Outbox: store.Outbox{Name: "orders"}, Routes: routes}}}
		r := &threeRoutes{sinks: map[string]*fakeBackend{}, in: make(chan capture.Batch)}
		freed, lanes := make(chan struct{}, 1), map[string]*dispatch.Dispatcher{}
		var parts []func(context.Context) error
		for name := range opt.routes() {
			r.sinks[name] = newFakeBackend()
			cfg := smallBuffer(buffer)
			cfg.APIBatchSize = 1
			lanes[name] = dispatch.New(cfg, r.sinks[name].options(7, true, freed))
			parts = append(parts, lanes[name].Run)
		}
		join := &fakeJoin{records: map[string]*store.LegRow{}}
		fan, err := opt.newFanOut(join, join, false)
		if err != nil {
			t.Fatal(err)
		}
		begin := store.Checkpoint{Legs: map[string]store.LegMark{}}
		for name := range lanes {
			begin.Legs[name] = store.LegMark{}
		}
		trackers := checkpoint.NewTrackers(begin, byText)
		r.intake = newIntake(trackers.Rest(), 7, lanes, freed, func(string, int) {})
		r.fanOutTo(fan, lanes, trackers, nil, byText)
		r.spillEnabled = true
		r.beginCatchUp(noneSettled{})
		end := runParts(t, append(parts, func(ctx context.Context) error { return r.run(ctx, r.in) })...)
		test(r)
		end()
	})
}

type noneSettled struct{}

func (noneSettled) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	return make([]bool, len(rows)), nil
}

// drain sends rows and returns how many each route got and spilled, within an hour.
func (r *threeRoutes) drain(rows int) map[string]string {
	for i := range rows {
		items := rowsOf("orders", fmt.Sprint("g", i%7), fmt.Sprint(i))
		select {
		case r.in <- capture.Batch{Position: store.Position(fmt.Sprintf("%06d", i+1)), Items: items}:
		case <-time.After(time.Hour):
		}
	}
	advance(time.Hour)
	got := map[string]string{}
	for name, k := range r.sinks {
		k.set(func() { got[strings.TrimPrefix(name, "orders/")] = fmt.Sprint(len(k.sent), " ", k.rowsSpilled > 0) })
	}
	delete(got, "unmatched")
	return got
}

// after answers a request after a while.
func after(latency time.Duration) func([]string) sink.Result {
	return func(ids []string) sink.Result {
		<-time.After(latency)
		return always(sink.Delivered)(ids)
	}
}

// Routes of one outbox that drain about as fast as each other spill nothing while the relay catches up,
// although each is slow and one or the other is almost empty now and then. On a busy machine each hardly
// drains, compared with its buffer.
func TestHealthyRoutesCatchUpTogether(t *testing.T) {
	for _, buffer := range []int{50, 400, 1000} {
		runThreeRoutes(t, buffer, func(r *threeRoutes) {
			for name, latency := range map[string]time.Duration{"bus": 300, "hooks": 350, "mail": 400} {
				k := r.sinks["orders/"+name]
				k.set(func() { k.answer = after(latency * time.Millisecond) })
			}
			expectEqual(t, fmt.Sprintf("buffer of %d rows: rows sent, any spilled", buffer),
				r.drain(4*buffer+1000), fmt.Sprintf("map[bus:%[1]d false hooks:%[1]d false mail:%[1]d false]", 4*buffer+1000))
		})
	}
}

// A route that hardly drains any more spills, although the others, until then as fast, wait for it.
func TestRouteThatBecomesSlowDelaysNoOther(t *testing.T) {
	runThreeRoutes(t, 50, func(r *threeRoutes) {
		began, took := time.Now(), time.Duration(0)
		for name, k := range r.sinks {
			var rows atomic.Int64
			k.set(func() {
				k.answer = func(ids []string) sink.Result {
					latency := 50 * time.Millisecond
					switch n := rows.Add(1); {
					case name == "orders/mail" && n > 500:
						latency = 30 * time.Second
					case name == "orders/bus" && n == 2000:
						took = time.Since(began)
					}
					return after(latency)(ids)
				}
			})
		}
		got := r.drain(2000)
		if got["bus"] != "2000 false" || took > 5*time.Minute {
			t.Errorf("the fast route got its rows after %s; rows sent, any spilled: %v", took, got)
		}
	})
}

// A route that gets few of the rows does not wait for one that was slow from the start.
func TestSlowRouteDelaysNoneWithFewRows(t *testing.T) {
	few := route.Rule{Kind: []string{"paid"}}
	runRoutes(t, 400, []Route{{Name: "bus", Sink: "b", When: few}, {Name: "hooks", Sink: "h", When: few}, {Name: "mail", Sink: "m"}}, func(r *threeRoutes) {
		began, took := time.Now(), time.Duration(0)
		for name, k := range r.sinks {
			latency, rows := 10*time.Millisecond, 0
			if name == "orders/mail" {
				latency = 1500 * time.Millisecond
			}
			k.set(func() {
				k.answer = func(ids []string) sink.Result {
					k.set(func() {
						if rows++; rows == 400 && name == "orders/bus" {
							took = time.Since(began)
						}
					})
					return after(latency)(ids)
				}
			})
		}
		for i := range 8000 {
			items := rowsOf("orders", fmt.Sprint("g", i%7), fmt.Sprint(i))
			if i%20 == 0 {
				items[0].Kind = "paid"
			}
			r.in <- capture.Batch{Position: store.Position(fmt.Sprintf("%06d", i+1)), Items: items}
		}
		advance(10 * time.Minute)
		if took == 0 || took > 5*time.Minute {
			t.Errorf("the route with few rows got them after %s", took)
		}
	})
}

// A dead route, and one that hardly drains, spill, so that the others catch up.
func TestDeadRouteDelaysNoOther(t *testing.T) {
	runThreeRoutes(t, 50, func(r *threeRoutes) {
		dead, slow := r.sinks["orders/hooks"], r.sinks["orders/mail"]
		dead.set(func() { dead.answer = always(sink.Unavailable) })
		slow.set(func() { slow.latency = 30 * time.Second })
		got := r.drain(2000)
		expectEqual(t, "rows of the live route, any spilled", got["bus"], "2000 false")
		if !strings.HasSuffix(got["hooks"], "true") || !strings.HasSuffix(got["mail"], "true") {
			t.Errorf("rows sent, any spilled: %v", got)
		}
	})
}
