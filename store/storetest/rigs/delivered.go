package rigs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Delivered reads delivered rows in a fresh view, in pages of two. It returns "ID TIME" per
// row, with the time in order-by, and the number of rows without a time.
func Delivered(tb testing.TB, st store.Viewer, q store.DeliveredQuery) (rows []string, undated int, err error) {
	tb.Helper()
	view, err := st.View(Context(tb), "")
	if err != nil {
		tb.Fatal(err)
	}
	defer view.Close()
	undated, err = view.Delivered(Context(tb), q, 2, func(items []store.Item) error {
		for i := range items {
			rows = append(rows, items[i].ID+" "+items[i].Committed.Format(time.RFC3339Nano))
		}
		return nil
	})
	return rows, undated, err
}

// WantDelivered compares the result of Delivered, joined by commas, with want.
func WantDelivered(tb testing.TB, st store.Viewer, q store.DeliveredQuery, want string, undated int) {
	tb.Helper()
	rows, n, err := Delivered(tb, st, q)
	if got := strings.Join(rows, ", "); got != want || n != undated || err != nil {
		tb.Errorf("%s: %s and %d without a time, want %s and %d; %v", fmt.Sprint(q), got, n, want, undated, err)
	}
}

// WantRequestCount pings a lock and compares its request count.
func WantRequestCount(tb testing.TB, what string, held store.Lock, want int64) {
	tb.Helper()
	if err := held.Ping(Context(tb)); err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
	if n := held.RequestCount(); n != want {
		tb.Errorf("%s: %d wishes, want %d", what, n, want)
	}
}
