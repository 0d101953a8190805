package store_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// TestSeqOrder: seqs order rows by epoch, then by capture counter, and return their epoch.
func TestSeqOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		epoch := rapid.Int64Range(0, 1<<23-1)
		count := rapid.Int64Range(0, 1<<40-1)
		e1, n1 := epoch.Draw(t, "e1"), count.Draw(t, "n1")
		e2, n2 := epoch.Draw(t, "e2"), count.Draw(t, "n2")
		a, b := store.NewSeq(store.Epoch(e1), n1), store.NewSeq(store.Epoch(e2), n2)
		if a < 0 || a.Epoch() != store.Epoch(e1) {
			t.Fatalf("seq %d of epoch %d: got epoch %d", a, e1, a.Epoch())
		}
		if less := e1 < e2 || e1 == e2 && n1 < n2; (a < b) != less {
			t.Fatalf("(%d, %d) is %d and (%d, %d) is %d", e1, n1, a, e2, n2, b)
		}
		if same := e1 == e2 && n1 == n2; (a == b) != same {
			t.Fatalf("(%d, %d) is %d and (%d, %d) is %d", e1, n1, a, e2, n2, b)
		}
	})
}

func TestSeqOutgrown(t *testing.T) {
	for _, n := range []int64{-1, 1 << 40} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("counter %d: no panic", n)
				}
			}()
			store.NewSeq(1, n)
		}()
	}
}

// TestLaneKeys: different names make different lanes, and no group differs from an empty
// group name.
func TestLaneKeys(t *testing.T) {
	name := rapid.SampledFrom([]string{"", "/", "a", "a/b", "(none)"})
	rapid.Check(t, func(t *rapid.T) {
		draw := func() store.Item {
			return store.Item{
				Ref:   store.Ref{Outbox: name.Draw(t, "outbox"), ID: name.Draw(t, "id")},
				Kind:  name.Draw(t, "kind"),
				Group: rapid.SampledFrom([]store.Group{{}, store.GroupOf(""), store.GroupOf("/"), store.GroupOf("(none)")}).Draw(t, "group"),
			}
		}
		a, b := draw(), draw()
		same := a.Outbox == b.Outbox && a.Kind == b.Kind && a.Group.Valid == b.Group.Valid && a.Group.Name == b.Group.Name
		if (a.Lane() == b.Lane()) != same {
			t.Fatalf("%+v and %+v", a.Lane(), b.Lane())
		}
	})
}

func TestStatus(t *testing.T) {
	for status, want := range map[store.Status]struct {
		word    string
		settled bool
	}{
		store.Pending: {"PENDING", false}, store.Processing: {"PROCESSING", false},
		store.Completed: {"COMPLETED", true}, store.Failed: {"FAILED", true}, 0: {"UNKNOWN", false},
	} {
		if status.String() != want.word || status.Settled() != want.settled {
			t.Errorf("status %d: %s, settled %t", status, status, status.Settled())
		}
	}
}
