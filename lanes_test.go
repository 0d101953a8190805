package sluicebox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// actionStore is a store with only the methods that actions need.
type actionStore struct {
	dispatch.Store
	did []string
	err error
}

func (l *actionStore) Hold(_ context.Context, _ store.Epoch, h store.Hold) error {
	l.did = append(l.did, fmt.Sprintf("hold %s: %s", h.Lane, h.Reason))
	return l.err
}

func (l *actionStore) Release(_ context.Context, _ store.Epoch, lane store.LaneKey, _ store.HoldKind) error {
	l.did = append(l.did, "release "+lane.String())
	return l.err
}

func (l *actionStore) Requeue(_ context.Context, _ store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	l.did = append(l.did, fmt.Sprintf("requeue %s %d", f.Outbox, limit))
	return []store.Item{{Ref: store.Ref{Outbox: f.Outbox, ID: "back"}, Kind: "EVENT", Group: store.GroupOf("g")}}, l.err
}

func (l *actionStore) Discard(_ context.Context, _ store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	l.did = append(l.did, fmt.Sprintf("discard %s %d", f.Outbox, limit))
	return nil, l.err
}

// idle is a sink without requests.
type idle struct{ sink.Sink }

func (idle) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1 << 20}
}

// testOptions returns the options of a relay with two outboxes and two sinks.
func testOptions() Options {
	table := func(name, sink string) Outbox {
		return Outbox{Outbox: store.Outbox{Name: name, Table: name, Layout: store.FlowCatalyst(), Kind: "EVENT"}, Sink: sink}
	}
	return Options{
		Database: noDatabase{}, Logger: slog.New(slog.DiscardHandler),
		Outboxes: []Outbox{table("orders", "near"), table("bills", "far")},
		Sinks:    map[string]Sink{"near": {Sink: idle{}}, "far": {Sink: idle{}}},
	}
}

// noDatabase is a database that is never opened.
type noDatabase struct{ Database }

// operatedRelay returns a leader with two sinks that sends nothing.
func operatedRelay(t *testing.T) (r *Relay, l *actionStore, logged *bytes.Buffer) {
	t.Helper()
	o, logged := testOptions(), &bytes.Buffer{}
	o.Logger = slog.New(slog.NewTextHandler(logged, nil))
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l = &actionStore{}
	lanes := map[string]*dispatch.Dispatcher{}
	for _, name := range []string{"near", "far"} {
		lanes[name] = dispatch.New(r.opt().Sinks[name].Dispatch, dispatch.Options{Store: l, Sink: idle{}, Epoch: 1})
	}
	r.currentDispatchers.Store(&lanes)
	return r, l, logged
}

// put adds rows to a lane of an outbox.
func put(t *testing.T, r *Relay, sink, outbox, group string, rows int) {
	t.Helper()
	for i := range rows {
		it := store.Item{Ref: store.Ref{Outbox: outbox, ID: fmt.Sprint(group, i)}, Kind: "EVENT", Group: store.GroupOf(group)}
		(*r.currentDispatchers.Load())[sink].Append([]store.Item{it}, nil)
	}
}

func name(outbox, group string) dispatch.LaneName {
	return dispatch.LaneName{LaneKey: store.LaneKey{Outbox: outbox, Kind: "EVENT", Group: store.GroupOf(group)}}
}

func groups(lanes []dispatch.LaneInfo) string {
	var names []string
	for i := range lanes {
		names = append(names, lanes[i].Outbox+"/"+lanes[i].Group.Name)
	}
	return strings.Join(names, " ")
}

// TestLanesOfAllSinks checks that the list merges the lanes of every sink, held lanes
// first.
func TestLanesOfAllSinks(t *testing.T) {
	r, _, _ := operatedRelay(t)
	put(t, r, "near", "orders", "a", 1)
	put(t, r, "near", "orders", "b", 3)
	put(t, r, "far", "bills", "c", 2)
	put(t, r, "far", "bills", "d", 4)
	controller := r.Lanes()
	if err := controller.Pause(t.Context(), name("orders", "a"), "why"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		filter dispatch.LaneFilter
		limit  int
		want   string
		total  int
	}{
		{dispatch.LaneFilter{}, 10, "orders/a bills/d orders/b bills/c", 4},
		{dispatch.LaneFilter{}, 2, "orders/a bills/d", 4},
		{dispatch.LaneFilter{Outbox: "bills"}, 1, "bills/d", 2},
		{dispatch.LaneFilter{State: "paused"}, 10, "orders/a", 1},
		{dispatch.LaneFilter{Group: &store.Group{Name: "c", Valid: true}}, 10, "bills/c", 1},
		{dispatch.LaneFilter{Group: &store.Group{}}, 10, "", 0},
	} {
		lanes, total, err := controller.List(tt.filter, tt.limit)
		if err != nil || groups(lanes) != tt.want || total != tt.total {
			t.Errorf("%+v: %s of %d, %v; want %s of %d", tt.filter, groups(lanes), total, err, tt.want, tt.total)
		}
	}
}

// TestLanesAct checks that actions reach the dispatcher of the lane and are
// logged.
func TestLanesAct(t *testing.T) {
	r, l, logged := operatedRelay(t)
	put(t, r, "far", "bills", "c", 1)
	controller := r.Lanes()
	if err := controller.Pause(t.Context(), name("bills", "c"), "stock-taking"); err != nil {
		t.Fatal(err)
	}
	if err := controller.Resume(t.Context(), name("bills", "c")); err != nil {
		t.Fatal(err)
	}
	if err := controller.RetryNow(name("bills", "c")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"hold bills/EVENT/c: stock-taking", "release bills/EVENT/c"}; !slices.Equal(l.did, want) {
		t.Errorf("did %q, want %q", l.did, want)
	}
	for _, want := range []string{
		`msg="lane paused by operator" outbox=bills kind=EVENT group=c reason=stock-taking`,
		`msg="lane resumed by operator" outbox=bills kind=EVENT group=c`, `msg="lane retried by operator"`,
	} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("not logged: %s\n%s", want, logged)
		}
	}
	logged.Reset()
	if err := controller.Skip(t.Context(), name("orders", "c"), "r"); !errors.Is(err, dispatch.ErrNoLane) {
		t.Errorf("the lane of another sink: %v", err)
	}
	other := name("bills", "c")
	other.Kind = "bill"
	var request *RequestError
	if err := controller.Pause(t.Context(), other, "r"); !errors.As(err, &request) || request.Problem != `no lane of outbox "bills" has the kind "bill": its lanes have the kind "EVENT"` {
		t.Errorf("a kind that no lane has: %v", err)
	}
	l.err = store.ErrNotLeader
	if err := controller.Pause(t.Context(), name("bills", "c"), "r"); !errors.Is(err, store.ErrNotLeader) || logged.Len() > 0 {
		t.Errorf("%v, logged %s", err, logged)
	}
}

// TestOperatorsAreRefused checks the errors for an unknown outbox and on a standby.
func TestOperatorsAreRefused(t *testing.T) {
	r, l, logged := operatedRelay(t)
	lanes, letters := r.Lanes(), r.DeadLetters()
	calls := func(outbox string) map[string]error {
		_, _, list := lanes.List(dispatch.LaneFilter{Outbox: outbox}, 1)
		_, count := letters.Count(t.Context(), store.DeadLetterFilter{Outbox: outbox})
		_, read := letters.List(t.Context(), store.DeadLetterFilter{Outbox: outbox}, 1, false)
		_, requeue := letters.Requeue(t.Context(), store.DeadLetterFilter{Outbox: outbox}, 1)
		_, discard := letters.Discard(t.Context(), store.DeadLetterFilter{Outbox: outbox}, 1)
		return map[string]error{
			"list": list, "count": count, "read": read, "requeue": requeue, "discard": discard,
			"retry":  lanes.RetryNow(name(outbox, "g")),
			"skip":   lanes.Skip(t.Context(), name(outbox, "g"), "r"),
			"pause":  lanes.Pause(t.Context(), name(outbox, "g"), "r"),
			"resume": lanes.Resume(t.Context(), name(outbox, "g")),
		}
	}
	for what, err := range calls("order") {
		var request *RequestError
		if !errors.As(err, &request) || request.Problem != `unknown outbox "order"; the outboxes are bills, orders` {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.currentDispatchers.Store(nil)
	if _, err := r.Requests(); !errors.Is(err, ErrNotLeading) {
		t.Errorf("requests: %v", err)
	}
	for what, err := range calls("orders") {
		if !errors.Is(err, ErrNotLeading) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := lanes.List(dispatch.LaneFilter{}, 1); !errors.Is(err, ErrNotLeading) {
		t.Errorf("list of all: %v", err)
	}
	if len(l.did) > 0 || logged.Len() > 0 {
		t.Errorf("did %q, logged %s", l.did, logged)
	}
}
