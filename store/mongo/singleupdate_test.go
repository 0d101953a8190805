package mongo_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// lock gives the rig's store the lock and the leadership, as a relay has them.
func (r *rig) lock(t testing.TB) store.Lock {
	t.Helper()
	lock, err := r.store.Lock(ctx(t))
	if err == nil {
		r.epoch, err = r.store.AcquireLeadership(ctx(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// transactions returns how many writes have updated the leader document.
func (r *rig) transactions(t testing.TB) int64 {
	t.Helper()
	var leader struct {
		N int64 `bson:"n"`
	}
	if err := r.db.Collection("sluicebox_leader").FindOne(ctx(t), bson.D{{Key: "_id", Value: "rig"}}).Decode(&leader); err != nil {
		t.Fatal(err)
	}
	return leader.N
}

// New rows are claimed and completed without a transaction. A transaction detects rows that
// are not as expected, for any reason.
func TestSingleUpdates(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.lock(t)
	r.insert(t, pending("a"), pending("b"), pending("c"), with(pending("d"), "status", "COMPLETED"))
	before := r.transactions(t)
	r.claim(t, row("a"), row("b"))
	if got := r.settle(t, rigs.Outcome("a", store.Completed)); got[0] != store.Written {
		t.Errorf("the outcome: %v", got)
	}
	if n := r.transactions(t) - before; n != 0 || r.status(t, "a") != "COMPLETED" || r.status(t, "b") != "PROCESSING" {
		t.Errorf("%d transactions, the rows are %s and %s", n, r.status(t, "a"), r.status(t, "b"))
	}
	for i, a := range r.claim(t, row("c"), row("d"), row("e")) {
		if want := []store.ClaimResult{store.Claimed, store.AlreadySettled, store.Gone}[i]; a.Result != want {
			t.Errorf("row %s is claimed as %s", []string{"c", "d", "e"}[i], a.Result)
		}
	}
	if n := r.transactions(t) - before; n != 1 {
		t.Errorf("%d transactions", n)
	}
	got := r.settle(t, rigs.Outcome("a", store.Completed), rigs.Outcome("b", store.Completed))
	if got[1] != store.Written || r.status(t, "b") != "COMPLETED" {
		t.Errorf("outcomes, the first of a row that is completed: %v", got)
	}
	if got := r.settle(t, rigs.Outcome("c", store.Failed)); got[0] != store.Written || r.transactions(t)-before != 3 {
		t.Errorf("a failure: %v, %d transactions", got, r.transactions(t)-before)
	}
}

// A row that fails is claimed and returned to PENDING without a transaction, however often. A retry
// count that the caller does not know is read.
func TestSingleUpdatesOfRetriedRow(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.lock(t)
	r.insert(t, pending("a"), pending("b"), with(pending("c"), "retryCount", 5))
	before := r.transactions(t)
	a := row("a")
	for n := range 3 {
		if got := r.claim(t, row("b"), a); got[0].Result != store.Claimed || got[1].Result != store.Claimed {
			t.Fatalf("attempt %d: the claims are %+v", n+1, got)
		}
		failed := rigs.Outcome("a", store.Pending)
		failed.RetryCount, failed.Error = n+1, "400"
		if got := r.settle(t, failed); got[0] != store.Written || r.status(t, "a") != "PENDING" {
			t.Fatalf("attempt %d: the outcome is %v, the row %s", n+1, got, r.status(t, "a"))
		}
		a.RetryCount = n + 1
	}
	if n := r.transactions(t) - before; n != 0 {
		t.Errorf("%d transactions for three attempts, want none", n)
	}
	if got := r.claim(t, a, row("c")); got[0].Result != store.Claimed || got[1].Result != store.Claimed || got[1].RetryCount != 5 {
		t.Errorf("a claim with a wrong retry count: got %+v, want the stored one, 5", got)
	}
	if n := r.transactions(t) - before; n != 1 {
		t.Errorf("%d transactions for a wrong retry count, want 1", n)
	}
}

// A row becomes PENDING once. Otherwise the claim that another processor makes at once would be undone
// while the outcome of another row, which is locked, waits.
func TestRetriedRowIsClaimedByAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	var err error
	if r.store, err = mongo.New(mongo.Config{URL: r.url, Name: "rig", Outboxes: []store.Outbox{r.box}, TakeoverTimeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.store.Close)
	r.lock(t)
	r.insert(t, pending("a"), pending("b"))
	r.claim(t, row("a"), row("b"))
	defer r.begin(t, "b")()
	failed := rigs.Outcome("a", store.Pending)
	failed.RetryCount = 1
	settled := rigs.Async(func() ([]store.SettleResult, error) {
		return r.store.Settle(ctx(t), r.epoch, []store.Outcome{failed, rigs.Outcome("b", store.Completed)})
	})
	for claimed := false; !claimed; {
		take := bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "PROCESSING"}}}}
		got, err := r.docs().UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "a"}, {Key: "status", Value: "PENDING"}}, take)
		if err != nil {
			t.Fatal(err)
		}
		claimed = got.MatchedCount == 1
	}
	if got := <-settled; got.Err != nil || got.Value[0] != store.Written || got.Value[1] != store.WasLocked {
		t.Errorf("the outcomes: %+v", got)
	}
	if s := r.status(t, "a"); s != "PROCESSING" {
		t.Errorf("the row that another processor has claimed is %s", s)
	}
}

// Claims give the same answers with and without a transaction, and leave the same
// documents.
func TestSingleUpdatesMatchTransactions(t *testing.T) {
	t.Parallel()
	plain, granted := newRig(t, servers.Mongo(t), flowBox()), newRig(t, servers.Mongo(t), flowBox())
	lock := granted.lock(t)
	kinds := []func(id any) bson.D{
		pending,
		func(id any) bson.D { return with(pending(id), "status", "PROCESSING") },
		func(id any) bson.D { return with(pending(id), "status", "COMPLETED") },
		func(id any) bson.D { return with(pending(id), "status", "FAILED") },
		func(id any) bson.D { return with(pending(id), "retryCount", 2) },
		func(id any) bson.D { return with(pending(id), "status", "ODD") },
		func(id any) bson.D { return with(pending(id), "retryCount", nil) },
		nil,
	}
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		if err := lock.Ping(ctx(t)); err != nil { // else the grant ends
			rt.Fatal(err)
		}
		var docs []bson.D
		var rows []store.ClaimRow
		// Mostly new rows, because the others shorten the run.
		drawn := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}), 1, 20).Draw(rt, "rows")
		for i, k := range drawn {
			id := fmt.Sprintf("x%d-%d", round, i)
			if kinds[k] != nil {
				docs = append(docs, kinds[k](id))
			}
			rows = append(rows, row(id))
			rows[i].RetryCount = rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(rt, "known retries")
		}
		if repeat := rapid.Bool().Draw(rt, "repeat"); repeat {
			rows = append(rows, rows[0])
		}
		at := time.Now()
		var answers [2][]store.ClaimAnswer
		for k, r := range []*rig{plain, granted} {
			if len(docs) > 0 {
				r.insert(t, docs...)
			}
			var err error
			if answers[k], err = r.store.Claim(ctx(t), r.epoch, at, rows); err != nil {
				rt.Fatal(err)
			}
		}
		for i := range rows {
			if a, b := answers[0][i], answers[1][i]; a.Result != b.Result || a.RetryCount != b.RetryCount || a.Unwritten != b.Unwritten {
				rt.Errorf("row %d is claimed as %+v in a transaction, and as %+v", i, a, b)
			}
		}
		for _, doc := range docs {
			if a, b := plain.status(t, doc[0].Value), granted.status(t, doc[0].Value); a != b {
				rt.Errorf("document %v is %s in a transaction, and %s", doc[0].Value, a, b)
			}
		}
	})
	before := granted.transactions(t)
	granted.insert(t, pending("new"))
	if granted.claim(t, row("new")); granted.transactions(t) != before {
		t.Error("a claim of a new row was a transaction")
	}
}

// Two documents whose ids differ only in type are both left unchanged.
func TestDuplicateIDTextsWithGrant(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.lock(t)
	twin := bson.NewObjectID()
	r.insert(t, pending(twin), pending(twin.Hex()), pending("a"))
	if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row(twin.Hex()), row("66f00000000000000000000f")}); !errors.As(err, new(*store.RefusedError)) {
		t.Errorf("claim of an ambiguous id: got %v", err)
	}
	if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome(twin.Hex(), store.Completed)}); !errors.As(err, new(*store.RefusedError)) {
		t.Errorf("outcome of an ambiguous id: got %v", err)
	}
	if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome(twin.Hex(), store.Completed), rigs.Outcome("66f00000000000000000000f", store.Completed)}); !errors.As(err, new(*store.RefusedError)) {
		t.Errorf("outcomes of an ambiguous id and of a missing row: got %v", err)
	}
	if a, b := r.status(t, twin), r.status(t, twin.Hex()); a != "PENDING" || b != "PENDING" {
		t.Errorf("got statuses %s and %s", a, b)
	}
}

// An outcome written by an update before the transaction resolved the rest is reported as
// written; a row that another session settled is not.
func TestPartlyWrittenOutcomes(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.lock(t)
	r.insert(t, pending("a"), with(pending("b"), "status", "FAILED"), with(pending("c"), "status", "COMPLETED"))
	r.claim(t, row("a"))
	got := r.settle(t, rigs.Outcome("a", store.Completed), rigs.Outcome("b", store.Completed), rigs.Outcome("c", store.Completed))
	if got[0] != store.Written || got[1] != store.WasSettled || got[2] != store.WasSettled {
		t.Errorf("the outcomes: %v", got)
	}
}

// A document that another session keeps changed costs a short wait once, and nothing while
// it stays so.
func TestSingleUpdateOfContendedDocument(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.lock(t)
	r.insert(t, pending("a"), pending("b"))
	release := r.begin(t, "a")
	for try := range 2 {
		answers := r.claim(t, row("a"), row("b"))
		if answers[0].Result != store.NotYetVisible || answers[1].Result != store.Claimed {
			t.Errorf("try %d: %+v", try, answers)
		}
	}
	release()
	if a := r.claim(t, row("a"))[0]; a.Result != store.Claimed {
		t.Errorf("after the transaction: got %+v", a)
	}
}
