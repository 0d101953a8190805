// Package rigs contains helpers for the store tests of a single database, in addition to
// the suite: a leading store, and calls that must succeed. Their table is that of the first
// FlowCatalyst outbox.
package rigs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// CallTimeout limits every call of a test, so that a hanging one fails by name.
const CallTimeout = time.Minute

// Context returns a context that ends after CallTimeout, and with the test.
func Context(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// EventsOutbox returns the outbox events in the table outbox_events.
func EventsOutbox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
}

// Row returns a claim of a row of EventsOutbox, with its payload.
func Row(id string) store.ClaimRow {
	return store.ClaimRow{Ref: store.Ref{Outbox: "events", ID: id}, WantPayload: true}
}

// Outcome returns an outcome of a row of EventsOutbox at the current time.
func Outcome(id string, status store.Status) store.Outcome {
	return store.Outcome{Ref: store.Ref{Outbox: "events", ID: id}, Status: status, At: time.Now()}
}

// InstallAndLead installs the relay's tables, checks all tables and acquires leadership.
func InstallAndLead(tb testing.TB, st store.Tables) store.Epoch {
	tb.Helper()
	if err := st.Install(Context(tb)); err != nil {
		tb.Fatal(err)
	}
	if err := st.Check(Context(tb)); err != nil {
		tb.Fatal(err)
	}
	epoch, err := st.AcquireLeadership(Context(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return epoch
}

// Claim claims rows.
func Claim(tb testing.TB, st store.Claimer, epoch store.Epoch, rows []store.ClaimRow) []store.ClaimAnswer {
	tb.Helper()
	answers, err := st.Claim(Context(tb), epoch, time.Now(), rows)
	if err != nil {
		tb.Fatal(err)
	}
	return answers
}

// Settle writes outcomes.
func Settle(tb testing.TB, st store.Settler, epoch store.Epoch, outcomes []store.Outcome) []store.SettleResult {
	tb.Helper()
	results, err := st.Settle(Context(tb), epoch, outcomes)
	if err != nil {
		tb.Fatal(err)
	}
	return results
}

// Prune scans the table of EventsOutbox to its end, n rows per call. It returns the number
// of deleted rows, and the refusals, which do not stop it.
func Prune(tb testing.TB, st store.Pruner, epoch store.Epoch, before time.Time, n int) (rows int, refused []error) {
	tb.Helper()
	p := store.PruneRequest{Outbox: "events", Before: before, Limit: n}
	for range 10_000 {
		done, err := st.Prune(Context(tb), epoch, p)
		var refusal *store.RefusedError
		if errors.As(err, &refusal) {
			refused = append(refused, err)
		} else if err != nil {
			tb.Fatal(err)
		}
		rows += done.Rows
		if p.From = done.Next; p.From == "" {
			return rows, refused
		}
	}

	tb.Fatal("Prune does not reach the end of the table")
	return 0, nil
}

// Groups returns the groups of up to 9 unsettled rows of EventsOutbox, without the lanes in
// except.
func Groups(tb testing.TB, st store.Viewer, except ...store.LaneKey) (groups []store.Group) {
	tb.Helper()
	view, err := st.View(Context(tb), "")
	if err != nil {
		tb.Fatal(err)
	}
	defer view.Close()
	items, err := view.Unsettled(Context(tb), store.UnsettledQuery{Outbox: "events", Limit: 9, ExcludeLanes: except})
	if err != nil {
		tb.Fatal(err)
	}

	for _, it := range items {
		groups = append(groups, it.Group)
	}

	return groups
}

// CheckExcludeLanes excludes the lane of each of n unsettled rows in turn, which must
// remove only that row. It returns the groups.
func CheckExcludeLanes(tb testing.TB, st store.Viewer, n int) []store.Group {
	tb.Helper()
	all := Groups(tb, st)
	if len(all) != n {
		tb.Fatalf("there are %d rows, want %d", len(all), n)
	}
	for i, out := range all {
		rest := fmt.Sprint(append(append([]store.Group{}, all[:i]...), all[i+1:]...))
		if got := fmt.Sprint(Groups(tb, st, Lane(out))); got != rest {
			tb.Errorf("without %v: %s, want %s", out, got, rest)
		}
	}
	return all
}

// Lane returns the lane of a group in EventsOutbox.
func Lane(g store.Group) store.LaneKey {
	return store.LaneKey{Outbox: "events", Kind: "EVENT", Group: g}
}

// WantSetup checks that err is a SetupError with a remedy and contains parts.
func WantSetup(tb testing.TB, what string, err error, parts ...string) {
	tb.Helper()
	var setup *store.SetupError
	if !errors.As(err, &setup) || setup.Remedy == "" {
		tb.Errorf("%s: %v, want a setup error with a remedy", what, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			tb.Errorf("%s does not say %q: %v", what, part, err)
		}
	}
}

// Answer is the result of a call.
type Answer[T any] struct {
	Value T
	Err   error
}

// Async runs a call in the background.
func Async[T any](call func() (T, error)) <-chan Answer[T] {
	c := make(chan Answer[T], 1)
	go func() {
		v, err := call()
		c <- Answer[T]{v, err}
	}()
	return c
}

// Exec runs a statement.
func Exec(tb testing.TB, db *sql.DB, query string, args ...any) {
	tb.Helper()
	if _, err := db.ExecContext(Context(tb), query, args...); err != nil {
		tb.Fatalf("%v, in: %s", err, query)
	}
}

// QueryValue returns the single value of a query.
func QueryValue[T any](tb testing.TB, db *sql.DB, query string, args ...any) T {
	tb.Helper()
	var v T
	if err := db.QueryRowContext(Context(tb), query, args...).Scan(&v); err != nil {
		tb.Fatalf("%v, in: %s", err, query)
	}
	return v
}

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
		tb.Errorf("%s: %d requests, want %d", what, n, want)
	}
}

// AwaitCommitsWait waits until the store reads a setting that makes commits wait for a
// standby, "" for none. Servers apply a new setting soon after it was written.
func AwaitCommitsWait(tb testing.TB, st store.CommitWaiter, want string) {
	tb.Helper()
	ctx := Context(tb)
	for {
		got, err := st.CommitsWait(ctx)
		if err != nil {
			tb.Fatalf("CommitsWait returns %q: %v, want %q", got, err, want)
		}
		if got == want {
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("CommitsWait returns %q, want %q", got, want)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// CheckCommitsWait checks that CommitsWait answers while a commit of the store waits for a
// standby that is missing. waiting counts the commits that wait, end lets them go on.
func CheckCommitsWait(tb testing.TB, st store.Tables, want string, waiting func() int, end func()) {
	tb.Helper()
	ctx := Context(tb)
	raised := make(chan error, 1)
	raise := func() {
		_, err := st.AcquireLeadership(ctx)
		raised <- err
	}
	go raise()
	for waiting() == 0 {
		select {
		case err := <-raised:
			// Another process of the server may not have taken the setting in yet.
			if err != nil {
				tb.Fatalf("a commit did not wait for the standby: %v", err)
			}
			go raise()
		case <-time.After(10 * time.Millisecond):
		}
	}
	AwaitCommitsWait(tb, st, want)
	end()
	if err := <-raised; err != nil {
		tb.Errorf("the commit that waited: %v", err)
	}
	AwaitCommitsWait(tb, st, "")
}
