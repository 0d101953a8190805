package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Concurrent claims, outcomes, checkpoints, spills and holds of one relay take turns, and
// none makes another fail.
func TestWritesTakeTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const writers, rounds, each = 4, 12, 5
	var docs []bson.D
	for i := range writers * rounds * each {
		docs = append(docs, pending(fmt.Sprint(i)))
	}
	r.insert(t, docs...)
	ctx := ctx(t)
	var all sync.WaitGroup
	errs := make(chan error, 1000)
	run := func(what string, call func(n int) error) {
		all.Go(func() {
			for n := range rounds {
				if err := call(n); err != nil {
					errs <- fmt.Errorf("%s: %w", what, err)
				}
			}
		})
	}
	for w := range writers {
		run("claims and outcomes", func(n int) error {
			var claims []store.ClaimRow
			var outcomes []store.Outcome
			for k := range each {
				id := fmt.Sprint((w*rounds+n)*each + k)
				claims = append(claims, row(id))
				outcomes = append(outcomes, rigs.Outcome(id, store.Completed))
			}
			answers, err := r.store.Claim(ctx, r.epoch, time.Now(), claims)
			for _, a := range answers {
				if a.Result != store.Claimed {
					err = errors.Join(err, fmt.Errorf("got row status %s", a.Result))
				}
			}
			if err != nil {
				return err
			}
			results, err := r.store.Settle(ctx, r.epoch, outcomes)
			for _, result := range results {
				if result != store.Written {
					err = errors.Join(err, fmt.Errorf("an outcome: %d", result))
				}
			}
			return err
		})
	}
	run("checkpoints", func(n int) error {
		return r.store.SaveCheckpoint(ctx, r.epoch, store.Checkpoint{Position: "p", Seq: store.Seq(n)})
	})
	run("spilling", func(n int) error {
		it := store.Item{Ref: store.Ref{Outbox: "events", ID: "p"}, Seq: store.Seq(n + 1)}
		return errors.Join(r.store.Spill(ctx, r.epoch, []store.Item{it}), r.store.DeleteSpilled(ctx, r.epoch, []store.SpilledRef{{Ref: it.Ref, Seq: it.Seq}}))
	})
	run("holds", func(int) error {
		h := store.Hold{Lane: rigs.Lane(store.GroupOf("g")), Kind: store.Paused, Since: time.Now()}
		return errors.Join(r.store.Hold(ctx, r.epoch, h), r.store.Release(ctx, r.epoch, h.Lane, h.Kind))
	})
	all.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if n, _ := r.docs().CountDocuments(ctx, bson.D{{Key: "status", Value: "COMPLETED"}}); n != writers*rounds*each {
		t.Errorf("got %d COMPLETED rows", n)
	}
}

// While claims keep arriving, outcomes are written in the transaction of the next claim, so
// that one leader update serves both.
func TestOutcomesJoinNextClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const rounds = 40
	var docs []bson.D
	for i := range rounds {
		docs = append(docs, pending(fmt.Sprint(i)))
	}
	r.insert(t, docs...)
	before := r.transactions(t)
	var outcomes sync.WaitGroup
	for i := range rounds {
		id := fmt.Sprint(i)
		r.claim(t, row(id))
		outcomes.Go(func() {
			results, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome(id, store.Completed)})
			if err != nil || results[0] != store.Written {
				t.Errorf("outcome of %s: %v, %v", id, results, err)
			}
		})
		<-time.After(3 * time.Millisecond) // enough for an outcome that does not wait
	}
	outcomes.Wait()
	n := r.transactions(t) - before
	t.Logf("%d claims and %d outcomes, one at a time, took %d transactions", rounds, rounds, n)
	if n >= 2*rounds { // on a busy machine few join, without the wait none
		t.Errorf("no outcome joined a claim: got %d transactions, want fewer than %d", n, 2*rounds)
	}
	if got := r.status(t, "0"); got != "COMPLETED" {
		t.Errorf("got row status %s", got)
	}
}

// begin changes documents in another session's transaction and leaves it open.
func (r *rig) begin(t *testing.T, ids ...any) (end func()) {
	t.Helper()
	session, err := r.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.EndSession(t.Context()) })
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	change := bson.D{{Key: "$set", Value: bson.D{{Key: "note", Value: "mine"}}}}
	_, err = r.docs().UpdateMany(driver.NewSessionContext(ctx(t), session), bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, change)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := session.AbortTransaction(ctx(t)); err != nil {
			t.Error(err)
		}
	}
}

// A document changed in an open transaction delays nothing else: a claim answers that it is
// not yet visible, an outcome that it is locked.
func TestContendedDocumentDelaysNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	var claims []store.ClaimRow
	for i := range 100 {
		r.insert(t, pending(fmt.Sprint(i)))
		claims = append(claims, row(fmt.Sprint(i)))
	}
	end := r.begin(t, "7", "50")
	began := time.Now()
	for i, a := range r.claim(t, claims...) {
		want := store.Claimed
		if i == 7 || i == 50 {
			want = store.NotYetVisible
		}
		if a.Result != want {
			t.Errorf("row %d is %s, want %s", i, a.Result, want)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the claim took %s", took)
	}
	got, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("6", store.Completed), rigs.Outcome("7", store.Completed)})
	if err != nil || !slices.Equal(got, []store.SettleResult{store.Written, store.WasLocked}) || r.status(t, "6") != "COMPLETED" {
		t.Errorf("an outcome of a document in use: %v, %v; the other is %s", got, err, r.status(t, "6"))
	}
	// While an outcome waits for one that was not met before, claims of other rows continue.
	endNew := r.begin(t, "60")
	waits := rigs.Async(func() ([]store.SettleResult, error) {
		return r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("60", store.Failed)})
	})
	claimed := 0
	for waiting := true; waiting; {
		select {
		case got := <-waits:
			waiting = false
			if got.Err != nil || got.Value[0] != store.WasLocked {
				t.Errorf("an outcome of a document in use: %v, %v", got.Value, got.Err)
			}
		default:
			r.claim(t, row("8"))
			claimed++
		}
	}
	if claimed < 2 { // it was 1
		t.Errorf("got %d concurrent claims", claimed)
	}
	endNew()
	end()
	if a := r.claim(t, row("7"))[0]; a.Result != store.Claimed {
		t.Errorf("after the transaction: got %s", a.Result)
	}
	r.settle(t, rigs.Outcome("7", store.Completed), rigs.Outcome("50", store.Completed))
}

// A large call is one transaction, and a call larger than one command is written
// completely.
func TestLargeCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const n = 12_000
	docs, claims, outcomes := make([]bson.D, n), make([]store.ClaimRow, n), make([]store.Outcome, n)
	for i := range n {
		id := fmt.Sprint("row ", i)
		docs[i], claims[i], outcomes[i] = pending(id), row(id), rigs.Outcome(id, store.Pending)
		outcomes[i].RetryCount = i
	}
	if _, err := r.docs().InsertMany(ctx(t), docs, options.InsertMany().SetOrdered(false)); err != nil {
		t.Fatal(err)
	}
	for i, a := range r.claim(t, claims...) {
		if a.Result != store.Claimed {
			t.Fatalf("row %d is %s", i, a.Result)
		}
	}
	for i, result := range r.settle(t, outcomes...) {
		if result != store.Written {
			t.Fatalf("outcome %d: %d", i, result)
		}
	}
	if count, _ := r.read(t, "row 11999").Lookup("retryCount").AsInt64OK(); count != 11999 {
		t.Errorf("got last count %d", count)
	}
}

// Canceled calls that wait, or that another call runs, delay nothing, and nothing touches
// their arguments after they return.
func TestCanceledCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const n = 40
	for i := range n {
		r.insert(t, pending(fmt.Sprint(i)))
	}
	whole := ctx(t)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for round := range 60 {
				short, cancel := context.WithTimeout(whole, time.Duration(rand.N(6*time.Millisecond)))
				rows := []store.ClaimRow{row(fmt.Sprint(rand.N(n))), row(fmt.Sprint(rand.N(n)))}
				outcomes := []store.Outcome{rigs.Outcome(rows[0].ID, store.Pending)}
				if (w+round)%2 == 0 {
					_, _ = r.store.Claim(short, r.epoch, time.Now(), rows)
				} else {
					_, _ = r.store.Settle(short, r.epoch, outcomes)
				}
				cancel()
				clear(rows) // the race detector reports later reads
				clear(outcomes)
			}
		})
	}
	all.Wait()
	var rows []store.ClaimRow
	for i := range n {
		rows = append(rows, row(fmt.Sprint(i)))
	}
	for i, a := range r.claim(t, rows...) {
		if a.Result != store.Claimed {
			t.Errorf("row %d is %s", i, a.Result)
		}
	}
}

// A backlog that is spilled while it is read is read exactly once, without the rows spilled
// before. Late pages take no longer than the first.
func TestSpillWhileReading(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const n, page = 12_000, 1000
	docs := make([]bson.D, n)
	for i := range n {
		docs[i] = pending(fmt.Sprintf("row %05d", i))
	}
	r.insert(t, docs...)
	spilled := func(id string, seq int) store.Item {
		return store.Item{Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Group: store.GroupOf("g"), Seq: store.Seq(seq)}
	}
	if err := r.store.Spill(ctx(t), r.epoch, []store.Item{spilled("row 00003", 1), spilled("row 11111", 2)}); err != nil {
		t.Fatal(err)
	}
	view, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	seen := map[string]bool{}
	whole := store.UnsettledQuery{Outbox: "events", Limit: math.MaxInt32, NoPayload: true}
	err = view.Pages(ctx(t), whole, page, func(items []store.Item) error {
		for i := range items {
			if seen[items[i].ID] {
				t.Errorf("row %s was read twice", items[i].ID)
			}
			seen[items[i].ID] = true
			items[i].Seq = store.Seq(len(seen) + 10)
		}
		return r.store.Spill(ctx(t), r.epoch, items)
	})
	if err != nil || len(seen) != n-2 || seen["row 00003"] || seen["row 11111"] {
		t.Errorf("got %d rows, %v; want %d", len(seen), err, n-2)
	}
}
