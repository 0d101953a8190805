package sluicebox

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

func TestDefaultsOfOptions(t *testing.T) {
	r, err := New(testOptions())
	if err != nil {
		t.Fatal(err)
	}
	o := r.opt()
	if o.Name != "sluicebox" || o.Mode != ModeAuto || o.Claims != ClaimsLate || o.MaxHold != 1<<30 || o.MaxKept != 10<<30 || o.SweepInterval != time.Minute ||
		o.Poll != (PollOptions{time.Second, 500, poll.DefaultBackoff()}) ||
		o.Sinks["near"].Dispatch != dispatch.DefaultConfig() || o.Sinks["near"].RequestTimeout != 30*time.Second {
		t.Errorf("%+v", o)
	}
	if got := o.smallestBuffer(); got != (store.ReadLimit{Rows: 10000, Bytes: 64 << 20}) || o.maxBatchBytes() != 4<<20 || o.maxSourcePayload() != 1<<20 {
		t.Errorf("buffer %+v, batch %d, payload %d", got, o.maxBatchBytes(), o.maxSourcePayload())
	}
}

// A dispatcher knows the outboxes of its own sink whose rows only the log has, because it keeps
// the contents of their rows.
func TestLogOnlyOutboxesOfASink(t *testing.T) {
	logOnly := store.Layout{State: store.StateNone}
	o := Options{Outboxes: []Outbox{
		{Outbox: store.Outbox{Name: "far", Layout: logOnly}, Sink: "far"}, {Outbox: store.Outbox{Name: "near", Layout: logOnly}, Sink: "near"},
		{Outbox: store.Outbox{Name: "orders", Layout: store.OutboxMessages()}, Sink: "near"},
	}}
	for sink, want := range map[string]map[string]bool{
		"far": {"far": true}, "near": {"near": true, "orders": false}, "third": {}, "": {"far": true, "near": true, "orders": false},
	} {
		if got := o.logOnly(sink); !maps.Equal(got, want) {
			t.Errorf("sink %q: got %v, want %v", sink, got, want)
		}
	}
}

// TestFrontiersOfLegs: the rows of a leg are spilled once overtaken, unless their table tells which of
// them it has delivered.
func TestFrontiersOfLegs(t *testing.T) {
	bus, hooks := Route{Name: "bus"}, Route{Name: "hooks"}
	for name, c := range map[string]struct {
		box  Outbox
		want []string
	}{
		"one route":     {box: Outbox{Routes: []Route{bus}}},
		"first match":   {box: Outbox{Routes: []Route{bus, hooks}, FirstMatch: true}},
		"two routes":    {box: Outbox{Routes: []Route{bus, hooks}}, want: []string{"o/bus", "o/hooks", "o/unmatched"}},
		"an optional":   {box: Outbox{Routes: []Route{{Name: "bus", Optional: true}}}, want: []string{"o/bus"}},
		"any suffices":  {box: Outbox{Routes: []Route{bus}, AnyRequired: true}, want: []string{"o/bus", "o/unmatched"}},
		"without state": {box: Outbox{Outbox: store.Outbox{Layout: store.Layout{State: store.StateNone}}, Routes: []Route{bus}}, want: []string{"o/bus", "o/unmatched"}},
	} {
		c.box.Name = "o"
		opt := Options{Outboxes: []Outbox{c.box}}
		if got := slices.Sorted(maps.Keys(opt.frontiers(false))); !slices.Equal(got, c.want) {
			t.Errorf("%s: frontiers of %v, want %v", name, got, c.want)
		}
	}
}

// New reports every fault of the options at once, as an error that no restart fixes.
func TestFaultsOfOptions(t *testing.T) {
	_, err := New(Options{
		Name: "Shop!", Mode: "push", Claims: ClaimsOff,
		Outboxes: []Outbox{{Outbox: store.Outbox{Name: "orders", Table: "orders", Layout: store.OutboxMessages()}, Sink: "far"}},
		Sinks:    map[string]Sink{"near": {}},
	})
	var setup *store.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("got %v, want a SetupError", err)
	}
	for _, want := range []string{"Shop!", "database: none", `mode is "push"`, `claims is "off", must be on or late; for off set Layout.Unclaimed`, `outbox orders: unknown sink "far"`, "sink near: set Sink, or Open and Limits"} {
		if !strings.Contains(setup.Problem, want) {
			t.Errorf("no %q in\n%s", want, setup.Problem)
		}
	}
	if lines := strings.Split(setup.Problem, "\n"); slices.Contains(lines, "") {
		t.Errorf("an empty line in %q", lines)
	}
}
