package sluicebox

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
	"github.com/sluicebox/sluicebox/store/legs"
)

// Rows that no route matched, and that a new route matches, are spilled for it. But a row that the log or a
// poll brings again must not: it would come before earlier rows of its group, which are in no copy.
func TestUnmatchedRowsKeepTheirPlace(t *testing.T) {
	for _, c := range []struct {
		name    string
		layout  store.Layout
		mark    store.Position // of the new route, at seq 5
		polling bool
		want    []string
	}{
		{"an intact log", store.FlowCatalyst(), "p5", false, []string{"3"}},
		{"a snapshot", store.FlowCatalyst(), "", false, []string{"3", "7"}},
		{"polling", store.FlowCatalyst(), "", true, nil},
		{"rows of the log alone", store.Layout{Columns: store.Columns{ID: "id", Payload: "payload"}, State: store.StateNone}, "p5", false, []string{"3", "7"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			opt := Options{Outboxes: []Outbox{{
				Outbox: store.Outbox{Name: "orders", Table: "orders", Layout: c.layout},
				Routes: []Route{{Name: "bus", Sink: "s", When: route.Rule{Kind: []string{"paid"}}}},
			}}}
			backend := memory.New().Backend("relay")
			st := ledger.Store{Ledger: ledger.New(ledger.Config{Outboxes: opt.tables(), Records: backend, Spill: backend, Replay: backend, BatchRows: 10, BatchBytes: 1000})}
			epoch, err := backend.AcquireLeadership(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var items []store.Item
			var records []store.LegRow
			for _, seq := range []store.Seq{3, 7} {
				it := ofKind("paid", fmt.Sprint(seq))[0]
				it.Outbox, it.Seq, it.Payload = "orders/unmatched", seq, []byte("{}")
				items = append(items, it)
				records = append(records, store.LegRow{Ref: store.Ref{Outbox: "orders", ID: it.ID}, Matched: []string{"unmatched"}, Spilled: []string{"unmatched"}})
			}
			if err := st.SpillLegs(t.Context(), epoch, items, records); err != nil {
				t.Fatal(err)
			}

			join := legs.New(st, opt.tables(), legs.Options{})
			fan, err := opt.newFanOut(join, st, c.polling)
			if err != nil {
				t.Fatal(err)
			}
			begin := checkpoint.StartPoint{Epoch: epoch, Watermark: store.Checkpoint{Legs: map[string]store.LegMark{"orders/bus": {Position: c.mark, Seq: 5}}}}
			if err := (&sessionStore{laneStore: join, join: join, fan: fan}).rerouteUnmatched(t.Context(), &begin, c.polling); err != nil {
				t.Fatal(err)
			}
			var recorded, copied []string
			if err := st.EachLegRow(t.Context(), "orders", func(r *store.LegRow) { recorded = append(recorded, r.ID) }); err != nil {
				t.Fatal(err)
			}
			slices.Sort(recorded)
			items[0].Outbox = "orders/bus"
			lane := items[0].Lane()
			lanes, err := st.ReadSpilled(t.Context(), []store.SpilledRange{{Outbox: "orders/bus", Lane: lane.Hash()}}, 9)
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range lanes[0] {
				copied = append(copied, it.ID)
			}
			if !slices.Equal(copied, c.want) || !slices.Equal(recorded, c.want) {
				t.Errorf("got copies %v and records %v, want %v", copied, recorded, c.want)
			}
		})
	}
}
