package ledger_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Attempts are read as they were saved, with any text, until they are dropped. A relay that leads no
// more writes none.
func TestAttemptsAreKept(t *testing.T) {
	r := newRig(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	first := store.FailedAttempts{Ref: store.Ref{Outbox: "a", ID: "ä\x001"}, Total: 7, Latest: []store.Attempt{
		{Started: at, Took: time.Second, Class: "unavailable", Error: "503: \"ö\""}, {Started: at.Add(time.Minute), Class: "refused"},
	}}
	second := store.FailedAttempts{Ref: store.Ref{Outbox: "gone", ID: "ä\x001"}, Total: 1, Latest: first.Latest[1:]}
	if err := r.SaveAttempts(t.Context(), r.epoch, []store.FailedAttempts{first, second}, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := r.ReadAttempts(t.Context(), first.Ref); err != nil || !reflect.DeepEqual(*got, first) {
		t.Errorf("got %+v, %v; want %+v", got, err, first)
	}
	if all, err := r.LoadAttempts(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("all are %+v, %v; want 2", all, err)
	}
	if err := r.SaveAttempts(t.Context(), r.epoch, nil, []store.Ref{first.Ref}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.ReadAttempts(t.Context(), first.Ref); err != nil || got != nil {
		t.Errorf("after the drop: %+v, %v", got, err)
	}
	if err := r.SaveAttempts(t.Context(), r.epoch-1, []store.FailedAttempts{first}, nil); err == nil {
		t.Error("an earlier leader may write")
	}
	if n := r.count(t, "attempts"); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}
