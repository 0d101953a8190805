package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRetainedLogAfterFailover: a promoted standby with the synchronized retained slot
// serves the position.
func TestRetainedLogAfterFailover(t *testing.T) {
	t.Parallel()
	withFailoverSlots(t, func(t *testing.T, version int) {
		p := newPair(t, version)
		f := follow(t, p.d, p.d.config(), store.Checkpoint{})
		servers.Exec(t, p.d.url, insert("first"))
		p.acknowledge(t, f, f.next().Position)
		p.moveSlot(t, f)
		p.standby.SyncSlot(p.d.name)
		at := retainAt(t, p.d, f, "one")
		p.standby.SyncSlot(at.Slot)
		servers.Exec(t, p.d.url, insert("a"), insert("b"), "DELETE FROM outbox_events WHERE id = 'a'")
		f.next()
		until := f.next().Position
		p.acknowledge(t, f, until)
		p.moveSlot(t, f)
		p.standby.SyncSlot(p.d.name)
		p.standby.CatchUp()
		p.primary.Stop("immediate")
		p.standby.Promote()
		f.expectTimelineChange()
		servers.Exec(t, p.d.url, insert("c"))
		ids, err := readAgain(t, p.d, at, until, nil)
		if err != nil || strings.Join(ids, " ") != "a b" {
			t.Errorf("got rows %q, error %v", ids, err)
		}
	})
}

// TestRetainedLogLostByFailover: on a promoted standby without the retained slot the error
// names the lost log, and the checkpoint still belongs to this log.
func TestRetainedLogLostByFailover(t *testing.T) {
	t.Parallel()
	inTurn(t, servers.Versions()[:1], func(t *testing.T, version int) {
		p := newPair(t, version)
		f := follow(t, p.d, p.d.config(), store.Checkpoint{})
		at := retainAt(t, p.d, f, "one")
		p.standby.CatchUp()
		p.primary.Stop("immediate")
		p.standby.Promote()
		f.expectTimelineChange()
		src := newSource(t, p.d.config())
		defer src.Close()
		var lost *capture.LostError
		if err := src.CheckReachable(t.Context(), at); !errors.As(err, &lost) || !strings.Contains(err.Error(), at.Slot) {
			t.Errorf("got %v, want a *capture.LostError", err)
		}
	})
}
