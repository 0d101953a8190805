package rigs

import (
	"context"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest"
)

// Replay makes every call for a named checkpoint and a replay, and returns the error of
// each.
func Replay(ctx context.Context, st storetest.Store, epoch store.Epoch, outbox string) map[string]error {
	row := store.ReplayRow{N: 1, Item: store.Item{Ref: store.Ref{Outbox: outbox, ID: "1"}, Kind: "EVENT"}}
	refused := store.FinishedRow{N: 1, Lane: row.Lane(), ID: "1", Result: store.ReplayRefused, Error: "no"}
	errs := map[string]error{}
	for _, call := range []struct {
		what string
		err  func() error
	}{
		{"request a checkpoint", func() error { return st.RequestSavepoint(ctx, "here", true) }},
		{"request its deletion", func() error { return st.RequestSavepointDeletion(ctx, "here") }},
		{"save it", func() error {
			return st.SaveSavepoint(ctx, epoch, store.Savepoint{Name: "here", State: store.SavepointRetained})
		}},
		{"read it", func() error { return second(st.Savepoints(ctx)) }},
		{"delete it", func() error { return st.DeleteSavepoint(ctx, epoch, "here") }},
		{"request a replay", func() error { return st.RequestReplay(ctx, "job", "{}") }},
		{"request a state", func() error { return st.RequestJobState(ctx, "job", store.DesiredPause) }},
		{"copy", func() error {
			return st.CopyRows(ctx, epoch, "job", []store.ReplayRow{row, {N: 2, Item: row.Item}}, store.ReplayCursor{Position: "p"})
		}},
		{"count", func() error { return st.SetRowCounts(ctx, epoch, "job", 2, 0) }},
		{"lanes", func() error { return second(st.ReplayLanes(ctx, "job", 0, 1)) }},
		{"rows", func() error {
			return second(st.ReplayRows(ctx, "job", []store.ReplayRange{{Outbox: outbox, Lane: row.Lane().Hash()}}, 1))
		}},
		{"states", func() error {
			return second(st.ReadStatuses(ctx, []store.ClaimRow{{Ref: row.Ref, WantPayload: true}}))
		}},
		{"done", func() error { return st.FinishRows(ctx, epoch, "job", []store.FinishedRow{refused}) }},
		{"clear", func() error { return second(st.ClearRows(ctx, epoch, "job", 9)) }},
		{"save", func() error { return st.SaveJob(ctx, epoch, store.Job{ID: "job", State: store.JobDone}) }},
		{"read", func() error { return second(st.Jobs(ctx)) }},
		{"errors", func() error { return second(st.JobErrors(ctx, "job", 9)) }},
	} {
		errs[call.what] = call.err()
	}

	return errs
}

func second[T any](_ T, err error) error { return err }

// CheckRequestCounts makes each kind of request once and compares the count after each. The
// third requests the replay "job".
func CheckRequestCounts(tb testing.TB, st storetest.Store, counted func() int) {
	tb.Helper()
	before := counted()
	for i, request := range []func(context.Context) error{
		func(ctx context.Context) error { return st.RequestSavepoint(ctx, "here", true) },
		func(ctx context.Context) error { return st.RequestSavepointDeletion(ctx, "here") },
		func(ctx context.Context) error { return st.RequestReplay(ctx, "job", "{}") },
		func(ctx context.Context) error { return st.RequestJobState(ctx, "job", store.DesiredCancel) },
	} {
		if err := request(Context(tb)); err != nil {
			tb.Fatal(err)
		}
		if n := counted() - before; n != i+1 {
			tb.Errorf("after %d requests the count is %d", i+1, n)
		}
	}
}

// EndJob runs a replay of one row, which is refused, to a final state.
func EndJob(tb testing.TB, st storetest.Store, epoch store.Epoch, outbox, id string, state store.JobState) {
	tb.Helper()
	row := store.ReplayRow{N: 1, Item: store.Item{Ref: store.Ref{Outbox: outbox, ID: "1"}, Kind: "EVENT"}}
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error { return st.RequestReplay(ctx, id, "{}") },
		func(ctx context.Context) error {
			return st.CopyRows(ctx, epoch, id, []store.ReplayRow{row}, store.ReplayCursor{})
		},
		func(ctx context.Context) error {
			return st.FinishRows(ctx, epoch, id, []store.FinishedRow{{N: 1, Lane: row.Lane(), Result: store.ReplayRefused}})
		},
		func(ctx context.Context) error { return st.SaveJob(ctx, epoch, store.Job{ID: id, State: state}) },
	} {
		if err := call(Context(tb)); err != nil {
			tb.Fatal(err)
		}
	}
}
