package sqlite_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
)

// TestCustomTable delivers rows of a table with its state in timestamps, through the log and
// through polling. Both must agree on the groups.
func TestCustomTable(t *testing.T) {
	boxes := []store.Outbox{capturetest.QuotedNames("shop")}
	d := newDatabaseOf(t, ddl.SQLite().Quoted(), boxes...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := errors.Join(d.views.Install(ctx), d.views.Check(ctx)); err != nil {
		t.Fatal(err)
	}
	epoch, err := d.views.AcquireLeadership(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cfg := d.config()
	cfg.Outboxes = boxes
	src := newSource(t, cfg)
	defer src.Close()
	o, err := src.Open(ctx, store.Checkpoint{}, &capturetest.Tables{Viewer: d.views})
	if err != nil {
		t.Fatal(err)
	}
	o.View.Close()
	rows := []capturetest.Row{
		{ID: "delivered", Group: store.GroupOf("g"), Payload: "1"}, {ID: "failed", Group: store.GroupOf(""), Payload: "2"},
		{ID: "tried", Payload: "3"},
	}
	d.Begin(t, rows...)(true)
	streamed := first(t, ctx, src, o.From)
	polling := poll.New(poll.Config{Interval: time.Second, BatchSize: 10, Outboxes: boxes}, d.views, capturetest.HeldFunc(nil))
	polled := first(t, ctx, polling, "")
	if len(streamed) != 3 || len(polled) != 3 {
		t.Fatalf("%d rows were streamed, %d polled", len(streamed), len(polled))
	}
	byID := map[string]store.Item{}
	for _, it := range polled {
		byID[it.ID] = it
	}
	var claims []store.ClaimRow
	var outcomes []store.Outcome
	for i, want := range rows {
		s, p := streamed[i], byID[want.ID]
		if s.ID != want.ID || s.Group != want.Group || p.Group != want.Group || s.Lane() != p.Lane() || string(p.Payload) != want.Payload {
			t.Errorf("row %s was streamed as %+v and polled as %+v", want.ID, s, p)
		}
		claims = append(claims, store.ClaimRow{Ref: s.Ref})
		outcomes = append(outcomes, store.Outcome{Ref: s.Ref, RetryCount: 1, At: time.Now(),
			Status: []store.Status{store.Completed, store.Failed, store.Pending}[i]})
	}
	answers, err := d.views.Claim(ctx, epoch, time.Now(), claims)
	if err != nil || answers[0].Result != store.Claimed || answers[1].Result != store.Claimed || answers[2].Result != store.Claimed {
		t.Fatalf("the claim answers %+v, %v", answers, err)
	}
	results, err := d.views.Settle(ctx, epoch, outcomes)
	if err != nil || results[0] != store.Written || results[1] != store.Written || results[2] != store.Written {
		t.Fatalf("the outcomes: %v, %v", results, err)
	}
	if left := first(t, ctx, polling, ""); len(left) != 1 || left[0].ID != "tried" || left[0].RetryCount != 1 {
		t.Errorf("unsettled are %+v, want the row that is to be tried again", left)
	}
}

// first returns the rows of a source's first batch that has any.
func first(t *testing.T, ctx context.Context, src capture.Source, from store.Position) []store.Item {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- src.Run(ctx, capture.Span{From: from}, out) }()
	defer func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the source ended with %v", err)
		}
	}()
	for {
		select {
		case b := <-out:
			if len(b.Items) > 0 {
				return b.Items
			}
		case err := <-done:
			done <- err
			t.Fatalf("the source ended: %v", err)
		}
	}
}
