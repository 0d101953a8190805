package rigs

import (
	"errors"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// Besides is a store whose sessions others share.
type Besides interface {
	Beside(of store.Settings) (ledger.Store, error)
}

// CheckBeside opens stores beside one. Each leads by itself, and claims and settles the row with its own epoch alone.
// begin begins a transaction that locks that row, awaitWaiter returns once a claim waits for it, and end ends it. A store
// that closes ends its own claim only.
func CheckBeside(t *testing.T, st Besides, n int, id string, begin func(), awaitWaiter func(), end func()) {
	t.Helper()
	stores, epochs := make([]ledger.Store, n), make([]store.Epoch, n)
	for i := range stores {
		beside, err := st.Beside(store.Settings{Name: store.ShardName("rig", i), Holder: "h"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(beside.Close)
		lock, err := beside.Lock(Context(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(lock.Release)
		if stores[i], epochs[i] = beside, InstallAndLead(t, beside); epochs[i] != 1 {
			t.Errorf("store %d leads with epoch %d", i, epochs[i])
		}
	}
	work := func(from int) {
		t.Helper()
		for i := from; i < n; i++ {
			Claim(t, stores[i], epochs[i], []store.ClaimRow{Row(id)})
			Settle(t, stores[i], epochs[i], []store.Outcome{Outcome(id, store.Pending)})
			if _, err := stores[i].Claim(Context(t), epochs[i]+1, time.Now(), []store.ClaimRow{Row(id)}); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("store %d claims with an epoch that it does not have: %v", i, err)
			}
		}
	}
	work(0)

	begin()
	waits := Async(func() ([]store.ClaimAnswer, error) {
		return stores[0].Claim(Context(t), epochs[0], time.Now(), []store.ClaimRow{Row(id)})
	})
	awaitWaiter()
	stores[0].Close()
	if got := <-waits; got.Err == nil {
		t.Error("a claim of a store that was closed succeeded")
	}
	end()
	work(1)
}
