package rigs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// Filtered is a store whose rows are selected by group or kind.
type Filtered interface {
	store.Viewer
	store.DeadLetters
}

// CheckGroupFilters selects FAILED and then delivered rows of EventsOutbox by the groups of the
// rows 1, 2 and so on, and by names of groups that no row has. set gives all rows a status.
func CheckGroupFilters(tb testing.TB, st Filtered, groups []store.Group, none []string, set func(store.Status)) {
	tb.Helper()
	check := func(status store.Status, read func(g store.Group) []string) {
		tb.Helper()
		set(status)
		for i, g := range groups {
			if got := read(g); !slices.Equal(got, []string{fmt.Sprint(i + 1)}) {
				tb.Errorf("%s rows of group %v: %q, want row %d", status, g, got, i+1)
			}
		}
		for _, name := range none {
			if got := read(store.GroupOf(name)); len(got) > 0 {
				tb.Errorf("%s rows of group %q, which no row has: %q", status, name, got)
			}
		}
	}
	check(store.Failed, func(g store.Group) (ids []string) {
		for _, d := range failedRows(tb, st, store.DeadLetterFilter{Outbox: "events", Group: &g}) {
			if d.Group != g {
				tb.Errorf("row %s has group %v, want %v", d.ID, d.Group, g)
			}
			ids = append(ids, d.ID)
		}
		return ids
	})
	check(store.Completed, func(g store.Group) []string {
		return deliveredIDs(tb, st, store.DeliveredQuery{Outbox: "events", Groups: []store.Group{g, store.GroupOf("no such group")}})
	})
}

// CheckKindFilters selects FAILED and then delivered rows of EventsOutbox by their own kinds,
// which ids maps to the id of their row, "" for none. set gives all rows a status.
func CheckKindFilters(tb testing.TB, st Filtered, ids map[string]string, set func(store.Status)) {
	tb.Helper()
	set(store.Failed)
	for kind, id := range ids {
		letters := failedRows(tb, st, store.DeadLetterFilter{Outbox: "events", Kind: kind})
		if len(letters) != min(1, len(id)) || id != "" && (letters[0].ID != id || letters[0].Kind != kind) {
			tb.Errorf("FAILED rows of kind %q: %+v, want row %q", kind, letters, id)
		}
	}
	set(store.Completed)
	for kind, id := range ids {
		got := deliveredIDs(tb, st, store.DeliveredQuery{Outbox: "events", Kinds: []string{kind}})
		if strings.Join(got, " ") != id {
			tb.Errorf("delivered rows of kind %q: %q, want row %q", kind, got, id)
		}
	}
}

func failedRows(tb testing.TB, st Filtered, f store.DeadLetterFilter) []store.DeadLetter {
	tb.Helper()
	letters, err := st.Failed(Context(tb), f, 99, false)
	if err != nil {
		tb.Fatal(err)
	}
	return letters
}

func deliveredIDs(tb testing.TB, st Filtered, q store.DeliveredQuery) []string {
	tb.Helper()
	rows, _, err := Delivered(tb, st, q)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range rows {
		rows[i], _, _ = strings.Cut(rows[i], " ")
	}
	return rows
}
