package ledger_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// settledTables record the outcomes of rows.
type settledTables struct {
	store.Tables
	backend *memory.Backend
	settled map[string]store.Status // by id
}

func (s settledTables) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	return s.backend.AcquireLeadership(ctx)
}

func (s settledTables) Settle(_ context.Context, _ store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	results := make([]store.SettleResult, len(outcomes))
	for i, o := range outcomes {
		results[i] = store.Written
		if s.settled[o.ID] != 0 {
			results[i] = store.WasSettled
			continue
		}
		s.settled[o.ID] = o.Status
	}
	return results, nil
}

// legRig is a store over a backend in memory, which outlives a change of the routes.
type legRig struct {
	ledger.Store
	tables settledTables
	epoch  store.Epoch
}

// open returns the store of a relay whose outbox "orders" has routes; those with a ? are
// optional.
func (r *legRig) open(t *testing.T, routes ...string) {
	t.Helper()
	box := store.Outbox{Name: "orders", Table: "orders", Layout: store.FlowCatalyst()}
	for _, name := range routes {
		optional := name[0] == '?'
		if optional {
			name = name[1:]
		}
		box.Routes = append(box.Routes, store.Route{Name: name, Optional: optional})
	}
	if r.tables.backend == nil {
		r.tables = settledTables{backend: memory.New().Backend("rig"), settled: map[string]store.Status{}}
	}
	r.Store = ledger.Store{Tables: r.tables, Ledger: ledger.New(ledger.Config{
		Outboxes: []store.Outbox{box}, Records: r.tables.backend, Spill: r.tables.backend, Replay: r.tables.backend,
		AreFailed: func(_ context.Context, rows []store.Ref) ([]bool, error) { return make([]bool, len(rows)), nil },
		BatchRows: 10, BatchBytes: 1000,
	})}
	var err error
	if r.epoch, err = r.AcquireLeadership(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func legItem(leg, id string, n int) store.Item {
	return store.Item{
		Ref: store.Ref{Outbox: leg, ID: id}, Kind: "EVENT", Group: store.GroupOf("g" + id), Seq: store.NewSeq(1, int64(n)),
		Payload: []byte("payload of " + id), PayloadSize: len("payload of " + id),
	}
}

// fill spills rows of the leg orders/hooks, one of which FAILED there, pauses it and a lane of it,
// and saves a mark. bus has delivered all rows but the last, which it has not seen.
func (r *legRig) fill(t *testing.T) {
	t.Helper()
	var items []store.Item
	var rows []store.LegRow
	for i := range 250 {
		row := store.LegRow{Ref: store.Ref{Outbox: "orders", ID: fmt.Sprint(i)}, Matched: []string{"bus", "hooks"}, Done: []string{"bus"}, Spilled: []string{"hooks"}}
		if i == 249 {
			row.Done = nil
		}
		items, rows = append(items, legItem("orders/hooks", row.ID, i+1)), append(rows, row)
	}
	failed := legItem("orders/hooks", "bad", 300)
	end := store.LegEnd{Of: store.Ref{Outbox: "orders", ID: "bad"}, Outcome: store.Outcome{Ref: failed.Ref, Status: store.Failed, Error: "400", Row: &failed, At: time.Now()}}
	end.Record = &store.LegRow{Ref: end.Of, Matched: []string{"bus", "hooks"}, Done: []string{"bus"}, Failed: []string{"hooks"}}
	lane := store.LaneKey{Outbox: "orders/hooks", Kind: "EVENT", Group: store.GroupOf("g1")}
	for _, err := range []error{
		r.SpillLegs(t.Context(), r.epoch, items, rows),
		r.SettleLegs(t.Context(), r.epoch, []store.LegEnd{end}),
		r.Hold(t.Context(), r.epoch, store.Hold{Lane: store.PauseOfOutbox("orders/hooks"), Kind: store.OutboxPaused, Reason: "incident"}),
		r.Hold(t.Context(), r.epoch, store.Hold{Lane: lane, Kind: store.Paused, Reason: "look"}),
		r.SaveCheckpoint(t.Context(), r.epoch, store.Checkpoint{Position: "9", Seq: 9, Legs: map[string]store.LegMark{
			"orders/bus": {Position: "12", Seq: 12}, "orders/hooks": {Position: "9", Seq: 9},
		}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (r *legRig) strays(t *testing.T) []store.StrayLeg {
	t.Helper()
	strays, err := r.StrayLegs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strays
}

// spilled returns the number of spilled rows by leg.
func (r *legRig) spilled(t *testing.T) map[string]int {
	t.Helper()
	rows := map[string]int{}
	if err := r.SpilledLanes(t.Context(), func(l store.SpilledLane) { rows[l.Outbox] += l.Rows }); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestConfiguredLegsAreNoStrays(t *testing.T) {
	r := &legRig{}
	r.open(t, "bus", "hooks")
	r.fill(t)
	if got := r.strays(t); len(got) > 0 {
		t.Errorf("got strays %+v", got)
	}
	if err := r.RenameLeg(t.Context(), r.epoch, "orders", "hooks", "bus"); err == nil {
		t.Error("a configured leg was renamed")
	}
}

func TestRenameLegMovesWhatWaits(t *testing.T) {
	r := &legRig{}
	r.open(t, "bus", "hooks")
	r.fill(t)
	r.open(t, "bus", "web")
	want := store.StrayLeg{Outbox: "orders", Route: "hooks", Marked: true, Spilled: 250, Failed: 1, Holds: 2}
	if got := r.strays(t); !slices.Equal(got, []store.StrayLeg{want}) {
		t.Fatalf("got strays %+v, want %+v", got, want)
	}
	if err := r.RenameLeg(t.Context(), r.epoch, "orders", "hooks", "web"); err != nil {
		t.Fatal(err)
	}
	if got := r.strays(t); len(got) > 0 {
		t.Errorf("got strays %+v", got)
	}
	if got := r.spilled(t); !maps.Equal(got, map[string]int{"orders/web": 250}) {
		t.Errorf("got spilled rows %v", got)
	}

	rows, err := r.LegRows(t.Context(), []store.Ref{{Outbox: "orders", ID: "7"}, {Outbox: "orders", ID: "bad"}})
	if err != nil || !slices.Equal(rows[0].Spilled, []string{"web"}) || !slices.Equal(rows[0].Done, []string{"bus"}) || !slices.Equal(rows[1].Failed, []string{"web"}) {
		t.Errorf("got records %+v, %+v, %v", rows[0], rows[1], err)
	}
	letters, err := r.Failed(t.Context(), store.DeadLetterFilter{Outbox: "orders/web"}, 10, true)
	if err != nil || len(letters) != 1 || string(letters[0].Payload) != "payload of bad" {
		t.Errorf("got dead letters %+v, %v", letters, err)
	}
	items, err := r.Requeue(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/web"}, 10)
	if err != nil || len(items) != 1 || items[0].Outbox != "orders/web" {
		t.Errorf("requeued %+v, %v", items, err)
	}
	holds, err := r.LoadHolds(t.Context())
	if err != nil || len(holds) != 2 || holds[0].Lane.Outbox != "orders/web" || holds[1].Lane.Outbox != "orders/web" {
		t.Errorf("got holds %+v, %v", holds, err)
	}
	cp, err := r.LoadCheckpoint(t.Context())
	if err != nil || cp.Position != "9" || !maps.Equal(cp.Legs, map[string]store.LegMark{"orders/bus": {Position: "12", Seq: 12}, "orders/web": {Position: "9", Seq: 9}}) {
		t.Errorf("got checkpoint %+v, %v", cp, err)
	}
}

// A leg that takes over another one reads the log again from the checkpoint. With the mark of either, it
// would miss rows that it never had.
func TestRenameLegToOneWithAMark(t *testing.T) {
	r := &legRig{}
	r.open(t, "bus", "hooks")
	r.fill(t)
	r.open(t, "bus")
	if err := r.RenameLeg(t.Context(), r.epoch, "orders", "hooks", "bus"); err != nil {
		t.Fatal(err)
	}
	if cp, err := r.LoadCheckpoint(t.Context()); err != nil || cp.Position != "9" || len(cp.Legs) > 0 {
		t.Errorf("got checkpoint %+v, %v", cp, err)
	}
}

// Rows that only the dropped leg held become COMPLETED. A row that another leg still needs keeps
// its record.
func TestDropLegEvaluatesJoins(t *testing.T) {
	r := &legRig{}
	r.open(t, "bus", "hooks")
	r.fill(t)
	r.open(t, "bus")
	settled, err := r.DropLeg(t.Context(), r.epoch, "orders", "hooks")
	if err != nil || settled != 250 {
		t.Errorf("settled %d rows, %v; want 249 that were spilled, and the FAILED one", settled, err)
	}
	for id, want := range map[string]store.Status{"0": store.Completed, "248": store.Completed, "bad": store.Completed, "249": 0} {
		if got := r.tables.settled[id]; got != want {
			t.Errorf("row %s: got %s, want %s", id, got, want)
		}
	}
	if got := r.strays(t); len(got) > 0 {
		t.Errorf("got strays %+v", got)
	}
	if got := r.spilled(t); len(got) > 0 {
		t.Errorf("got spilled rows %v", got)
	}
	var left []string
	if err := r.EachLegRow(t.Context(), "orders", func(row *store.LegRow) { left = append(left, row.ID) }); err != nil || !slices.Equal(left, []string{"249"}) {
		t.Errorf("got records of %v, %v; want 249", left, err)
	}
	cp, err := r.LoadCheckpoint(t.Context())
	if err != nil || cp.Position != "9" || len(cp.Legs) != 1 {
		t.Errorf("got checkpoint %+v, %v", cp, err)
	}
}

// A row that no leg delivered is FAILED, never COMPLETED.
func TestDropOnlyLegFailsRows(t *testing.T) {
	r := &legRig{}
	r.open(t, "hooks")
	row := store.LegRow{Ref: store.Ref{Outbox: "orders", ID: "1"}, Matched: []string{"hooks"}, Spilled: []string{"hooks"}}
	if err := r.SpillLegs(t.Context(), r.epoch, []store.Item{legItem("orders/hooks", "1", 1)}, []store.LegRow{row}); err != nil {
		t.Fatal(err)
	}
	r.open(t, "other")
	if n, err := r.DropLeg(t.Context(), r.epoch, "orders", "hooks"); n != 1 || err != nil || r.tables.settled["1"] != store.Failed {
		t.Errorf("settled %d rows, %v: %v; want FAILED", n, err, r.tables.settled)
	}
}

// What waits for an outbox without routes is stray once it has some, and can go to one of them.
func TestRenameOfUnroutedOutbox(t *testing.T) {
	r := &legRig{}
	r.open(t)
	it := legItem("orders", "1", 1)
	if err := r.Spill(t.Context(), r.epoch, []store.Item{it}); err != nil {
		t.Fatal(err)
	}
	r.open(t, "bus", "?hooks")
	if got := r.strays(t); len(got) != 1 || got[0].Leg() != "orders" || got[0].Spilled != 1 {
		t.Fatalf("got strays %+v, want orders", got)
	}
	if err := r.RenameLeg(t.Context(), r.epoch, "orders", "", "bus"); err != nil {
		t.Fatal(err)
	}
	rows, err := r.LegRows(t.Context(), []store.Ref{{Outbox: "orders", ID: "1"}})
	if err != nil || rows[0] == nil || !slices.Equal(rows[0].Matched, []string{"bus"}) || !maps.Equal(r.spilled(t), map[string]int{"orders/bus": 1}) {
		t.Errorf("got record %+v, spilled %v, %v", rows[0], r.spilled(t), err)
	}
	if got := r.strays(t); len(got) > 0 {
		t.Errorf("got strays %+v", got)
	}
}

// A mark alone makes a leg stray, because rows of the log may wait for it: also if its outbox has
// no route any more.
func TestMarkAloneIsStray(t *testing.T) {
	for name, routes := range map[string][]string{"another route": {"bus"}, "no route": nil} {
		t.Run(name, func(t *testing.T) {
			r := &legRig{}
			r.open(t, "bus", "hooks")
			cp := store.Checkpoint{Position: "9", Seq: 9, Legs: map[string]store.LegMark{"orders/hooks": {Position: "9", Seq: 9}}}
			if err := r.SaveCheckpoint(t.Context(), r.epoch, cp); err != nil {
				t.Fatal(err)
			}
			r.open(t, routes...)
			want := store.StrayLeg{Outbox: "orders", Route: "hooks", Marked: true}
			if got := r.strays(t); !slices.Equal(got, []store.StrayLeg{want}) {
				t.Errorf("got strays %+v, want %+v", got, want)
			}
		})
	}
}

// Polling saves no marks: the records of rows name the legs, also of an outbox that has no route
// any more.
func TestRowsOfAnOutboxWithoutRoutesAreStray(t *testing.T) {
	r := &legRig{}
	r.open(t, "hooks")
	row := store.LegRow{Ref: store.Ref{Outbox: "orders", ID: "1"}, Matched: []string{"hooks"}, Spilled: []string{"hooks"}}
	if err := r.SpillLegs(t.Context(), r.epoch, []store.Item{legItem("orders/hooks", "1", 1)}, []store.LegRow{row}); err != nil {
		t.Fatal(err)
	}
	r.open(t)
	if got := r.strays(t); len(got) != 1 || got[0].Leg() != "orders/hooks" || got[0].Spilled != 1 {
		t.Errorf("got strays %+v, want orders/hooks", got)
	}
}

// A FAILED row of a leg that was discarded is no reason to fail the row, and its record follows the names of
// routes.
func TestRenameLegMovesWhatWasDiscarded(t *testing.T) {
	r := &legRig{}
	r.open(t, "bus", "hooks")
	it := legItem("orders/hooks", "1", 1)
	end := store.LegEnd{Of: store.Ref{Outbox: "orders", ID: "1"}, Outcome: store.Outcome{Ref: it.Ref, Status: store.Failed, Error: "400", Row: &it, At: time.Now()}}
	end.Record = &store.LegRow{Ref: end.Of, Matched: []string{"bus", "hooks"}, Failed: []string{"hooks"}}
	if err := r.SettleLegs(t.Context(), r.epoch, []store.LegEnd{end}); err != nil {
		t.Fatal(err)
	}
	if refs, err := r.Discard(t.Context(), r.epoch, store.DeadLetterFilter{Outbox: "orders/hooks"}, 1); err != nil || len(refs) != 1 {
		t.Fatal(refs, err)
	}
	r.open(t, "bus", "web")
	if err := r.RenameLeg(t.Context(), r.epoch, "orders", "hooks", "web"); err != nil {
		t.Fatal(err)
	}
	rows, err := r.LegRows(t.Context(), []store.Ref{end.Of})
	if err != nil || rows[0] == nil || !slices.Equal(rows[0].Discarded, []string{"web"}) || !slices.Equal(rows[0].Missing(), []string{"bus"}) {
		t.Errorf("got record %+v, %v", rows[0], err)
	}
}

// A row whose legs have ended gets the same status from a dropped leg as from its last end: what a leg without a
// route would have made of it does not count, nor does a discarded one. A FAILED leg keeps its record.
func TestDropLegFollowsTheRuleOfLegs(t *testing.T) {
	for _, c := range []struct {
		routes string
		row    store.LegRow
		want   store.Status
		stays  bool
	}{
		{"bus ?audit", store.LegRow{Done: []string{"bus"}, Failed: []string{"audit"}}, store.Completed, true},
		{"bus ?audit", store.LegRow{Done: []string{"audit"}, Discarded: []string{"bus"}}, store.Completed, false},
		{"?bus ?audit", store.LegRow{Failed: []string{"bus", "audit"}, Retries: map[string]store.LegRetry{"bus": {Count: 3, Error: "no"}}}, store.Failed, true},
		{"bus audit", store.LegRow{Discarded: []string{"bus", "audit"}}, store.Failed, false},
	} {
		r := &legRig{}
		r.open(t, append(strings.Fields(c.routes), "hooks")...)
		c.row.Ref, c.row.Matched, c.row.Spilled = store.Ref{Outbox: "orders", ID: "1"}, []string{"bus", "audit", "hooks"}, []string{"hooks"}
		if err := r.SpillLegs(t.Context(), r.epoch, []store.Item{legItem("orders/hooks", "1", 1)}, []store.LegRow{c.row}); err != nil {
			t.Fatal(err)
		}
		r.open(t, strings.Fields(c.routes)...)
		if _, err := r.DropLeg(t.Context(), r.epoch, "orders", "hooks"); err != nil {
			t.Fatal(err)
		}
		rows, err := r.LegRows(t.Context(), []store.Ref{c.row.Ref})
		if got := r.tables.settled["1"]; got != c.want || err != nil || (rows[0] != nil) != c.stays {
			t.Errorf("%s: %+v: the row is %s with the record %+v, %v; want %s, and a record: %t", c.routes, c.row, got, rows[0], err, c.want, c.stays)
		}
	}
}
