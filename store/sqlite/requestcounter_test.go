package sqlite

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestPingReadsOnlyChanges: a ping reads the table only if the file has changed.
func TestPingReadsOnlyChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outbox.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := New(Config{URL: "sqlite://" + path, Name: "rig", Outboxes: []store.Outbox{rigs.EventsOutbox()}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := st.Install(rigs.Context(t)); err != nil {
		t.Fatal(err)
	}
	taken, err := st.Lock(rigs.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	rigs.WantRequestCount(t, "at first", taken, 0)
	taken.(*lock).requests.requests = 99
	for range 3 {
		rigs.WantRequestCount(t, "nothing was written", taken, 99)
	}
	if err := st.RequestSavepoint(rigs.Context(t), "here", false); err != nil {
		t.Fatal(err)
	}
	rigs.WantRequestCount(t, "a request", taken, 1)
}
