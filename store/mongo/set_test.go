package mongo_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// obstruct injects failures into the next commands of stores named rig.
func obstruct(s *servers.MongoSet, times int, how ...bson.E) {
	data := append(bson.D{{Key: "appName", Value: "sluicebox rig"}}, how...)
	s.Run("admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: times}}}, {Key: "data", Value: data}})
}

// testCommands enables fault injection in the server.
func testCommands() map[string]string {
	return map[string]string{"setParameter enableTestCommands": "1"}
}

// A commit whose answer is lost, or whose result is unknown, is resolved: the call reports
// what was written, and it is written once.
func TestUnknownCommits(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	r := newRig(t, set.Database(), flowBox())
	commit := bson.E{Key: "failCommands", Value: bson.A{"commitTransaction"}}
	concern := bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}}}
	for i, how := range []struct {
		what  string
		times int
		how   []bson.E
	}{
		{"a connection that breaks", 1, []bson.E{commit, {Key: "closeConnection", Value: true}}},
		{"connections that break", 3, []bson.E{commit, {Key: "closeConnection", Value: true}}},
		{"a majority that is slow", 3, []bson.E{commit, concern}},
		{"a primary that steps down", 2, []bson.E{commit, {Key: "errorCode", Value: 11602}}},
		{"a transaction that is lost", 2, []bson.E{commit, {Key: "errorCode", Value: 251}, {Key: "errorLabels", Value: bson.A{"TransientTransactionError"}}}},
	} {
		id := fmt.Sprint(i)
		r.insert(t, pending(id))
		obstruct(set, how.times, how.how...)
		if a := r.claim(t, row(id))[0]; a.Result != store.Claimed || r.status(t, id) != "PROCESSING" {
			t.Errorf("%s: the row is %s and claimed as %s", how.what, r.status(t, id), a.Result)
		}
		obstruct(set, how.times, how.how...)
		if result := r.settle(t, rigs.Outcome(id, store.Completed))[0]; result != store.Written || r.status(t, id) != "COMPLETED" {
			t.Errorf("%s: the row is %s and the outcome %d", how.what, r.status(t, id), result)
		}
	}
	// A result that cannot be resolved is an error, and the next call resolves it.
	r.insert(t, pending("never"))
	obstruct(set, 1000, commit, concern)
	began := time.Now()
	_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("never", store.Completed)})
	if err == nil || errors.As(err, new(*store.RefusedError)) || errors.Is(err, store.ErrNotLeader) || !mongo.Unreachable(err) {
		t.Errorf("outcome with an unknown result: got %v", err)
	}
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("took %s", took)
	}
	set.Run("admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "off"}})
	if result := r.settle(t, rigs.Outcome("never", store.Completed))[0]; result != store.WasSettled {
		t.Errorf("the same again: %d", result)
	}
}

// A commit whose result stays unknown, on a server that is away for longer than a call
// waits, leaves a usable session. Its next transactions are really sent, including those of
// a single operation.
func TestSessionAfterUnknownCommit(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	box := flowBox()
	box.Layout = store.Layout{Name: "none", State: store.StateNone, Columns: store.Columns{ID: "_id", Group: "messageGroup", Payload: "payload"}}
	r := newRig(t, set.Database(), box)
	r.insert(t, pending("a"))
	r.claim(t, row("a"))
	obstruct(set, 1, bson.E{Key: "failCommands", Value: bson.A{"commitTransaction"}},
		bson.E{Key: "blockConnection", Value: true}, bson.E{Key: "blockTimeMS", Value: 3000})
	claimed := rigs.Async(func() ([]store.ClaimAnswer, error) {
		return r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("a")})
	})
	time.Sleep(300 * time.Millisecond) // the commit is in flight
	set.Members[0].Stop("immediate")
	if got := <-claimed; got.Err == nil {
		t.Errorf("claim succeeded: %v", got.Value)
	}
	set.Restart(nil)
	for range 4 {
		before := r.transactions(t)
		r.claim(t, row("a"))
		if after := r.transactions(t); after != before+1 {
			t.Errorf("a claim wrote the leader document %d times", after-before)
		}
	}
	if epoch, err := r.store.AcquireLeadership(ctx(t)); err != nil || epoch != r.epoch+1 {
		t.Errorf("next leader: got epoch %d, %v", epoch, err)
	}
	if l, err := r.store.Leader(ctx(t)); err != nil || l.Epoch != r.epoch+1 {
		t.Errorf("got leader %+v, %v", l, err)
	}
}

// A lease whose answer is lost belongs to the store when it asks again.
func TestLostLeaseAnswer(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	r := newRig(t, set.Database(), flowBox())
	take := bson.E{Key: "failCommands", Value: bson.A{"findAndModify"}}
	concern := bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}}}
	obstruct(set, 1, take, concern)
	if lock, err := r.store.Lock(ctx(t)); err == nil || errors.As(err, new(*store.LockedError)) {
		t.Fatalf("the first try: %v, %v", lock, err)
	}
	other := openStore(t, r.url, r.box)
	if lock, err := other.Lock(ctx(t)); !errors.As(err, new(*store.LockedError)) {
		t.Errorf("another's try: %v, %v", lock, err)
	}
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatalf("the second try: %v", err)
	}
	defer lock.Release()
	if again, err := r.store.Lock(ctx(t)); !errors.As(err, new(*store.LockedError)) {
		t.Errorf("a third try: %v, %v", again, err)
	}
}

// A step-down in the middle of a claim costs time, but no answer.
func TestStepDown(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 3, nil)
	r := newRig(t, set.Database(), flowBox())
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	const n = 4
	for round := range n {
		id := fmt.Sprint(round)
		r.insert(t, pending(id))
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				_, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row(id)})
				if err != nil && !mongo.Unreachable(err) {
					stopped <- err
					return
				}
			}
		}()
		set.StepDown()
		began := time.Now()
		if err := lock.Ping(ctx(t)); err != nil {
			t.Errorf("a ping in a step-down: %v", err)
		}
		t.Logf("a ping was answered %s after a step-down", time.Since(began))
		close(stop)
		if err := <-stopped; err != nil {
			t.Errorf("a claim in a step-down: %v", err)
		}
		if a := r.claim(t, row(id))[0]; a.Result != store.Claimed {
			t.Errorf("after the step-down: got claim %s", a.Result)
		}
		if result := r.settle(t, rigs.Outcome(id, store.Completed))[0]; result != store.Written {
			t.Errorf("after the step-down: got outcome %d", result)
		}
	}
	if n, _ := r.docs().CountDocuments(ctx(t), bson.D{{Key: "status", Value: "COMPLETED"}}); n != 4 {
		t.Errorf("got %d COMPLETED rows", n)
	}
}

// A silent server delays a claim by about 4 s and is used again once it answers.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, nil)
	r := newRig(t, set.Database(), flowBox())
	r.insert(t, pending("1"))
	r.claim(t, row("1"))
	set.Members[0].Freeze()
	for what, call := range map[string]func() error{
		"claim": func() error {
			_, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("1")})
			return err
		},
		"settle": func() error {
			_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("1", store.Failed)})
			return err
		},
		"leader": func() error { _, err := r.store.Leader(ctx(t)); return err },
	} {
		began := time.Now()
		err := call()
		if took := time.Since(began); err == nil || !mongo.Unreachable(err) || took > 5500*time.Millisecond {
			t.Errorf("%s: %v after %s", what, err, took)
		}
	}
	set.Members[0].Thaw()
	for began := time.Now(); ; {
		_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("1", store.Completed)})
		if err == nil {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(err)
		}
	}
}

// A document near the server's size limit is relayed as long as its status fits; otherwise
// it is refused by name.
func TestLargeDocuments(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const most = 16 << 20
	size := func(doc bson.D) int {
		b, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	for id, room := range map[string]int{"fits": 100, "full": 0} {
		doc := with(pending(id), "payload", "")
		doc = with(doc, "payload", strings.Repeat("x", most-room-size(doc)))
		r.insert(t, doc)
	}
	ask := row("fits")
	ask.WantPayload = true
	if a := r.claim(t, ask)[0]; a.Result != store.Claimed || len(a.Payload) < most-1000 {
		t.Errorf("got claim %s with %d bytes", a.Result, len(a.Payload))
	}
	var refused *store.RefusedError
	if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("full")}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("a full document: %v", err)
	}
	if items := r.unsettled(t, store.UnsettledQuery{}); len(items) != 2 {
		t.Errorf("got %d rows", len(items))
	}
	if result := r.settle(t, rigs.Outcome("fits", store.Completed))[0]; result != store.Written {
		t.Errorf("the outcome: %d", result)
	}
}

// A payload whose JSON is too long to be spilled is left out and read again.
func TestSpillLargePayload(t *testing.T) {
	t.Parallel()
	box := flowBox()
	box.Layout = store.Layout{Name: "none", State: store.StateNone, Columns: store.Columns{ID: "_id", Group: "messageGroup", Payload: "payload"}}
	r := newRig(t, servers.Mongo(t), box)
	dates := make(bson.A, 680_000)
	for i := range dates {
		dates[i] = bson.DateTime(i)
	}
	r.insert(t, with(pending("large"), "payload", dates))
	ask := row("large")
	ask.WantPayload = true
	payload := r.claim(t, ask)[0].Payload
	it := store.Item{Ref: ask.Ref, Seq: 1, Payload: payload, PayloadSize: len(payload)}
	if err := r.store.Spill(ctx(t), r.epoch, []store.Item{it}); err != nil || len(payload) <= 16<<20 {
		t.Fatalf("%d bytes: %v", len(payload), err)
	}
	lane := it.Lane()
	lists, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events", Lane: lane.Hash()}}, 5)
	if err != nil || len(lists[0]) != 1 || lists[0][0].Payload != nil || lists[0][0].PayloadSize != len(payload) {
		t.Errorf("got %d spilled rows, %v", len(lists[0]), err)
	}
}

// A read of spilled rows waits for a snapshot that includes the store's writes, also if the
// primary does not know yet that a majority has them.
func TestSnapshotIncludesWrites(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 3, nil)
	r := newRig(t, set.Database(), flowBox())
	it := store.Item{Ref: store.Ref{Outbox: "events", ID: "1"}, Kind: "EVENT", Group: store.GroupOf("g"), Seq: 1}
	if err := r.store.Spill(ctx(t), r.epoch, []store.Item{it}); err != nil {
		t.Fatal(err)
	}
	primary := set.Primary()
	for _, m := range set.Members {
		if m != primary {
			m.Freeze()
			defer m.Thaw()
		}
	}
	session, err := r.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	queue := r.db.Collection("sluicebox_queue", options.Collection().SetWriteConcern(writeconcern.W1()))
	change := bson.D{{Key: "$set", Value: bson.D{{Key: "kind", Value: "changed"}}}}
	if _, err := queue.UpdateOne(driver.NewSessionContext(ctx(t), session), bson.D{{Key: "id", Value: "1"}}, change); err != nil {
		t.Fatal(err)
	}
	r.store.RecordWrite(session.OperationTime())
	read := rigs.Async(func() ([][]store.Item, error) {
		return r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events", Lane: it.Lane().Hash()}}, 5)
	})
	select {
	case got := <-read:
		t.Errorf("the read did not wait: %+v", got)
	case <-time.After(500 * time.Millisecond):
		for _, m := range set.Members {
			if m != primary {
				m.Thaw()
			}
		}
		if got := <-read; got.Err != nil || len(got.Value[0]) != 1 || got.Value[0][0].Kind != "changed" {
			t.Errorf("got spilled rows %+v", got)
		}
	}
}

// A server outside a replica set works too.
func TestStandaloneServer(t *testing.T) {
	t.Parallel()
	set := servers.StandaloneMongo(t, nil)
	r := newRig(t, set.Database(), flowBox())
	for i := range 20 {
		r.insert(t, pending(fmt.Sprint(i)))
	}
	items := r.unsettled(t, store.UnsettledQuery{})
	if len(items) != 20 {
		t.Fatalf("got %d items", len(items))
	}
	var claims []store.ClaimRow
	var outcomes []store.Outcome
	for i, it := range items {
		claims = append(claims, row(it.ID))
		outcomes = append(outcomes, rigs.Outcome(it.ID, []store.Status{store.Completed, store.Failed}[i%2]))
	}
	for _, a := range r.claim(t, claims...) {
		if a.Result != store.Claimed {
			t.Errorf("a row is %s", a.Result)
		}
	}
	for _, result := range r.settle(t, outcomes...) {
		if result != store.Written {
			t.Errorf("an outcome: %d", result)
		}
	}
	if settled, err := r.store.ReadSettled(ctx(t), claims); err != nil || !settled[0] {
		t.Errorf("settled: %v, %v", settled, err)
	}
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if err := errors.Join(lock.Ping(ctx(t)), r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "x"})); err != nil {
		t.Error(err)
	}
	next := openStore(t, r.url, r.box)
	if _, err := next.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), claims); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("an old epoch: %v", err)
	}
	found, err := r.store.Diagnose(ctx(t))
	if err != nil || store.CountFaults(found) != 0 || !strings.Contains(fmt.Sprint(found), "rs.initiate()") {
		t.Errorf("Diagnose: got %+v, %v", found, err)
	}
}
