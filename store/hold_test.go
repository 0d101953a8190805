package store_test

import (
	"encoding/hex"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// TestLaneHash pins the hash, because later releases read stored hashes.
func TestLaneHash(t *testing.T) {
	for _, c := range []struct {
		lane store.LaneKey
		want string // printf EVENT | sha256sum | head -c 8; printf '\0\0\0\0\0\0\0\5EVENT\1a' | sha256sum | head -c 32
	}{
		{store.LaneKey{Outbox: "any"}, "e3b0c4423e7077fd2f66d689e0cee6a7cf5b37bf"},
		{store.LaneKey{Kind: "EVENT", Group: store.GroupOf("a")}, "b3c5c9164df7bba2547923a175e2cc94ce22f8d9"},
	} {
		hash := c.lane.Hash()
		if got := hex.EncodeToString(hash[:]); got != c.want {
			t.Errorf("%s: %s, want %s", c.lane, got, c.want)
		}
	}
}

// TestLaneHashTellsApart: kinds and groups that concatenate to the same text are different
// lanes.
func TestLaneHashTellsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a\x00\x01/]{0,4}`)
		draw := func(label string) store.LaneKey {
			k := store.LaneKey{Outbox: "o", Kind: text.Draw(t, label+" kind")}
			if rapid.Bool().Draw(t, label+" grouped") {
				k.Group = store.GroupOf(text.Draw(t, label+" group"))
			}
			return k
		}
		a, b := draw("a"), draw("b")
		if (a.Hash() == b.Hash()) != (a == b) {
			t.Fatalf("%#v and %#v: %x and %x", a, b, a.Hash(), b.Hash())
		}
	})
}

func TestHoldKinds(t *testing.T) {
	for _, k := range []store.HoldKind{store.Blocked, store.Paused} {
		if got, err := store.ParseHoldKind(k.String()); err != nil || got != k {
			t.Errorf("%s reads as %s, %v", k, got, err)
		}
	}
	for _, word := range []string{"", "unknown", "Blocked", "held"} {
		if k, err := store.ParseHoldKind(word); err == nil {
			t.Errorf("%q reads as %s", word, k)
		}
	}
}

// TestOutcomeValidate: the rules for outcomes are the same on every database.
func TestOutcomeValidate(t *testing.T) {
	box := store.Outbox{Name: "o", Table: "t", Layout: store.FlowCatalyst()}
	stateless := box
	stateless.Layout.State = store.StateNone
	block := &store.Hold{Lane: store.LaneKey{Outbox: "o"}, Since: time.Unix(1, 0)}
	outcome := func(s store.Status, h *store.Hold) store.Outcome {
		return store.Outcome{Ref: store.Ref{Outbox: "o", ID: "1"}, Status: s, RetryCount: 2, Error: "e", Block: h}
	}
	good := outcome(store.Failed, block)
	if err := good.Validate(&box); err != nil {
		t.Error(err)
	}

	want := store.Hold{Lane: block.Lane, Kind: store.Blocked, ID: "1", RetryCount: 2, Reason: "e", Since: block.Since}
	if got := good.Hold(); got != want {
		t.Errorf("the hold is %+v, want %+v", got, want)
	}

	for what, o := range map[string]store.Outcome{
		"PROCESSING": outcome(store.Processing, nil), "none": outcome(0, nil), "PENDING": outcome(store.Pending, block),
		"COMPLETED": outcome(store.Completed, block), "another outbox": outcome(store.Failed, &store.Hold{}),
	} {
		if err := o.Validate(&box); err == nil {
			t.Errorf("%s: %+v is valid, want an error", what, o)
		}
	}

	if err := good.Validate(&stateless); err != nil {
		t.Errorf("without state: %v", err)
	}
}
