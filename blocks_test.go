package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// fakeFailed has the FAILED rows of tables, by outbox.
type fakeFailed struct {
	rows    map[string][]store.DeadLetter
	spilled []store.SpilledLane
	err     error
}

func (f *fakeFailed) SpilledLanes(_ context.Context, take func(store.SpilledLane)) error {
	for _, l := range f.spilled {
		take(l)
	}
	return nil
}

func (f *fakeFailed) EachFailed(_ context.Context, filter store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	for i := range f.rows[filter.Outbox] {
		take(&f.rows[filter.Outbox][i])
	}
	return f.err
}

// TestFindBlocksOnFirstStart: the last FAILED row of a lane blocks it if the lane has
// waiting rows, in memory or spilled. A FAILED row does not block a lane without
// waiting rows, or a lane of an outbox that continues.
func TestFindBlocksOnFirstStart(t *testing.T) {
	at := time.Unix(1000, 0)
	letter := func(outbox, group, id, text string) store.DeadLetter {
		return store.DeadLetter{Ref: store.Ref{Outbox: outbox, ID: id}, Kind: "K", Group: store.GroupOf(group), Error: text, RetryCount: 3, FailedAt: at}
	}

	item := func(outbox, group string) store.Item {
		return store.Item{Ref: store.Ref{Outbox: outbox, ID: "w"}, Kind: "K", Group: store.GroupOf(group)}
	}

	spilled := item("o", "spilled")
	tables := &fakeFailed{rows: map[string][]store.DeadLetter{
		"o": {
			letter("o", "memory", "1", "first"), letter("o", "old", "2", "long ago"), letter("o", "spilled", "3", "away"),
			letter("o", "memory", "4", "last"), {Ref: store.Ref{Outbox: "o", ID: "5"}, Kind: "K"},
		},
		"continues": {letter("continues", "memory", "6", "no")},
	}}
	backlog := []store.Item{item("o", "memory"), item("o", "sound"), item("continues", "memory"), {Ref: store.Ref{Outbox: "o", ID: "w"}, Kind: "K"}}
	tables.spilled = []store.SpilledLane{{Outbox: "o", Kind: "K", Hash: spilled.Lane().Hash(), Rows: 1}}
	holds, err := findBlocks(t.Context(), tables, []string{"o"}, backlog)
	if err != nil {
		t.Fatal(err)
	}

	got := ""
	for _, h := range holds {
		got += fmt.Sprintf("%s %s %s %d %q; ", h.Lane.Group, h.Kind, h.ID, h.RetryCount, h.Reason)
		if h.Since.IsZero() {
			t.Errorf("%+v has no time", h)
		}
	}

	want := `memory blocked 4 3 "last"; spilled blocked 3 3 "away"; ` + store.Group{}.String() + ` blocked 5 0 "FAILED before the relay's first start"; `
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	tables.err = errors.New("down")
	if _, err := findBlocks(t.Context(), tables, []string{"o"}, backlog); !errors.Is(err, tables.err) {
		t.Errorf("got %v", err)
	}

	tables.spilled = nil
	if holds, err := findBlocks(t.Context(), tables, []string{"o"}, nil); err != nil || holds != nil {
		t.Errorf("without waiting rows: %v, %v", holds, err)
	}
}
