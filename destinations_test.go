package sluicebox

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A relay that has found its destination and not joined it yet keeps it, although another relay opens one
// with other inputs meanwhile. Otherwise a third relay would have circuit breakers and slots of its own.
func TestDestinationIsKeptUntilItIsJoined(t *testing.T) {
	all := NewDestinations()
	before, after := Sink{Inputs: "before"}, Sink{Inputs: "after"}
	first := all.of("hooks", before)
	all.of("hooks", after)
	if again := all.of("hooks", before); again != first {
		t.Error("a relay with the same inputs has another destination")
	}
	d := dispatch.New(dispatch.DefaultConfig(), dispatch.Options{Sink: UnmatchedHold.open().Sink, Destination: first})
	d.Close()
	if n := first.Stats().Members; n != 1 {
		t.Errorf("%d members, want the one to come", n)
	}
	dispatch.New(dispatch.DefaultConfig(), dispatch.Options{Sink: UnmatchedHold.open().Sink, Destination: first}).Close()
	all.of("hooks", Sink{Inputs: "third"})
	if again := all.of("hooks", before); again == first {
		t.Error("a destination without users is kept")
	}
}

// TestUnmatchedAnswers: each row has an answer of its own that says which row it is, and rows that
// are refused leave the circuit breaker closed, so that they do not wait for each other.
func TestUnmatchedAnswers(t *testing.T) {
	msgs := []sink.Message{
		{ID: "1", Kind: "order", Attributes: store.Attributes{{Name: store.AttributeType, Value: "OrderLost"}}},
		{ID: "2", Kind: "invoice", Lane: 1},
	}
	for _, tt := range []struct {
		as     Unmatched
		class  sink.Class
		unsent bool
	}{
		{UnmatchedFail, sink.Rejected, true},
		{UnmatchedComplete, sink.Delivered, false},
		{UnmatchedHold, sink.Misconfigured, false},
	} {
		to := tt.as.open()
		res := to.Sink.Deliver(t.Context(), msgs)
		if res.Unsent != tt.unsent || to.Dispatch.MaxRetries != 0 {
			t.Errorf("%s: unsent %t, %d retries; want %t, 0", tt.as, res.Unsent, to.Dispatch.MaxRetries, tt.unsent)
		}
		for i, want := range []string{"no route matches the row of kind order, type OrderLost; add", "no route matches the row of kind invoice; add"} {
			out := res.At(i)
			if out.Class != tt.class || out.Class != sink.Delivered && !strings.HasPrefix(out.Detail, want) {
				t.Errorf("%s: row %d: got %s %q, want %s %q", tt.as, i, out.Class, out.Detail, tt.class, want)
			}
		}
	}
}
