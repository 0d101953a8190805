package mongo_test

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// await acquires the lock as soon as possible and returns how long that took.
func await(t testing.TB, st *mongo.Store) time.Duration {
	t.Helper()
	for began := time.Now(); ; <-time.After(50 * time.Millisecond) {
		_, err := st.Lock(ctx(t))
		if err == nil {
			return time.Since(began)
		}
		if !errors.As(err, new(*store.LockedError)) || time.Since(began) > 15*time.Second {
			t.Fatal(err)
		}
	}
}

// A leader that was frozen until another took over writes nothing when it wakes, although
// its grant seems valid. Neither does a leader whose lock was taken by other means.
func TestExpiredGrantWritesNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		what    string
		replace func(t *testing.T, next *mongo.Store)
	}{
		{"its lease is over", func(t *testing.T, next *mongo.Store) { await(t, next) }},
		{"another leads without the lock", func(*testing.T, *mongo.Store) {}},
	} {
		t.Run(how.what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, servers.Mongo(t), flowBox())
			lock := r.lock(t)
			r.insert(t, pending("a"), pending("b"), pending("c"))
			r.claim(t, row("a"))
			next := openStore(t, r.url, r.box)
			how.replace(t, next)
			if _, err := next.AcquireLeadership(ctx(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("b")}); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("claim of the frozen leader: %v", err)
			}
			if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("a", store.Completed)}); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("outcome of the frozen leader: %v", err)
			}
			if a, b := r.status(t, "a"), r.status(t, "b"); a != "PROCESSING" || b != "PENDING" {
				t.Errorf("got statuses %s and %s", a, b)
			}
			if err := lock.Ping(ctx(t)); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("ping of the lost lock: %v", err)
			}
		})
	}
}

// No update begins in the last second of a grant, so that it has ended before the next
// leader starts, even under another user who cannot see it in $currentOp. On a server
// without writes the cluster time does not cover that second.
func TestGrantEndsBeforeItsTerm(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	lock := r.lock(t)
	r.insert(t, pending("a"))
	if err := lock.Ping(ctx(t)); err != nil {
		t.Fatal(err)
	}
	pinged := time.Now()
	unseen := bson.D{{Key: "$set", Value: bson.D{{Key: "session", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {Key: "aside", Value: bson.Binary{}}}}}
	if _, err := r.db.Collection("sluicebox_leader").UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "rig"}}, unseen); err != nil {
		t.Fatal(err)
	}
	release := r.begin(t, "a")
	<-time.After(time.Until(pinged.Add(4850 * time.Millisecond)))
	claimed := rigs.Async(func() ([]store.ClaimAnswer, error) {
		return r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("a")})
	})
	next := openStore(t, r.url, r.box)
	await(t, next)
	if _, err := next.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	release()
	if got := <-claimed; got.Err == nil && got.Value[0].Result == store.Claimed || r.status(t, "a") != "PENDING" {
		t.Errorf("stale leader's claim: got %+v, row status %s", got, r.status(t, "a"))
	}
}

// A store that leads again writes nothing in its old epoch.
func TestGrantOfOldEpochWritesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.lock(t)
	r.insert(t, pending("a"))
	old := r.epoch
	var err error
	if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Claim(ctx(t), old, time.Now(), []store.ClaimRow{row("a")}); !errors.Is(err, store.ErrNotLeader) || r.status(t, "a") != "PENDING" {
		t.Errorf("a claim in the old epoch: %v, the row is %s", err, r.status(t, "a"))
	}
	if a := r.claim(t, row("a"))[0]; a.Result != store.Claimed {
		t.Errorf("a claim: %+v", a)
	}
}

// If the cluster time is ahead of the primary's clock, e.g. after a primary with a fast
// clock, a silent leader is not waited for any longer.
func TestClusterTimeAheadOfClock(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	r := newRig(t, set.Database(), flowBox())
	session, err := r.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	ahead := bson.D{{Key: "$clusterTime", Value: bson.D{
		{Key: "clusterTime", Value: bson.Timestamp{T: uint32(time.Now().Add(30 * time.Second).Unix()), I: 1}}, //nolint:gosec // until 2106
		{Key: "signature", Value: bson.D{{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(0)}}},
	}}}
	raw, err := bson.Marshal(ahead)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.AdvanceClusterTime(raw); err != nil {
		t.Fatal(err)
	}
	if _, err := r.docs().InsertOne(driver.NewSessionContext(ctx(t), session), pending("a")); err != nil {
		t.Fatal(err)
	}
	r.lock(t)
	before := r.transactions(t)
	if a := r.claim(t, row("a"))[0]; a.Result != store.Claimed || r.transactions(t) != before+1 {
		t.Errorf("a claim: %+v, by %d transactions", a, r.transactions(t)-before)
	}
	if took := await(t, openStore(t, r.url, r.box)); took > 10*time.Second {
		t.Errorf("next relay acquired the lock after %s", took)
	}
}

// replaced releases a lock and returns a store that could acquire it at once.
func (r *rig) replaced(t *testing.T, lock store.Lock) *mongo.Store {
	t.Helper()
	lock.Release()
	next := openStore(t, r.url, r.box)
	taken, err := next.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	taken.Release()
	return next
}

// Releasing the lock revokes the grant, so the next leader waits for nothing. It does wait
// if a write was not answered, because that write may still arrive.
func TestReleaseRevokesGrant(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	r := newRig(t, set.Database(), flowBox())
	r.insert(t, pending("a"), pending("b"))
	lock := r.lock(t)
	r.claim(t, row("a"))
	next := r.replaced(t, lock)
	lock = r.lock(t)
	obstruct(set, 1, bson.E{Key: "failCommands", Value: bson.A{"update"}}, bson.E{Key: "closeConnection", Value: true})
	before := r.transactions(t)
	if a := r.claim(t, row("b"))[0]; a.Result != store.Claimed || r.status(t, "b") != "PROCESSING" || r.transactions(t) != before+1 {
		t.Errorf("the claim whose answer was lost is %s, the row %s", a.Result, r.status(t, "b"))
	}
	lock.Release()
	if _, err := next.Lock(ctx(t)); !errors.As(err, new(*store.LockedError)) {
		t.Errorf("lock acquired at once: %v", err)
	}
	if took := await(t, next); took > 7*time.Second {
		t.Errorf("took %s", took)
	}
}

// A lock released during an update keeps its grant. An update that went unanswered long ago
// no longer keeps it.
func TestReleaseDuringUpdateKeepsGrant(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	r := newRig(t, set.Database(), flowBox())
	r.insert(t, pending("a"), pending("b"))
	lock := r.lock(t)
	obstruct(set, 1, bson.E{Key: "failCommands", Value: bson.A{"update"}}, bson.E{Key: "closeConnection", Value: true})
	r.claim(t, row("a"))
	for began := time.Now(); time.Since(began) < 6*time.Second; <-time.After(time.Second) {
		if err := lock.Ping(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	next := r.replaced(t, lock)
	lock = r.lock(t)
	obstruct(set, 1, bson.E{Key: "failCommands", Value: bson.A{"update"}}, bson.E{Key: "blockConnection", Value: true}, bson.E{Key: "blockTimeMS", Value: 3000})
	claimed := rigs.Async(func() ([]store.ClaimAnswer, error) {
		return r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("b")})
	})
	<-time.After(time.Second) // the update is in flight
	lock.Release()
	if _, err := next.Lock(ctx(t)); !errors.As(err, new(*store.LockedError)) {
		t.Errorf("lock acquired during an update: %v", err)
	}
	<-claimed
}

// A new leader ends a write of the old leader that still runs, and waits if ending it takes
// time.
func TestLeaderEndsRunningWrite(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, testCommands())
	r := newRig(t, set.Database(), flowBox())
	r.insert(t, pending("a"))
	session, err := r.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.EndSession(t.Context()) })
	id := r.impersonate(t, session, "sluicebox_leader")
	hang := func(mode string) {
		set.Run("admin", bson.D{{Key: "configureFailPoint", Value: "hangDuringBatchUpdate"}, {Key: "mode", Value: mode},
			{Key: "data", Value: bson.D{{Key: "nss", Value: r.db.Name() + "." + r.box.Table}}}})
	}
	hang("alwaysOn")
	wrote := rigs.Async(func() (*driver.UpdateResult, error) {
		claim := bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "PROCESSING"}}}}
		return r.docs().UpdateMany(driver.NewSessionContext(ctx(t), session), bson.D{{Key: "_id", Value: "a"}}, claim)
	})
	runs := func(also ...bson.E) {
		t.Helper()
		look := append(bson.D{{Key: "currentOp", Value: 1}, {Key: "lsid.id", Value: id}, {Key: "active", Value: true}}, also...)
		for range 1000 {
			var ops struct {
				Running []bson.Raw `bson:"inprog"`
			}
			if err := r.db.Client().Database("admin").RunCommand(ctx(t), look).Decode(&ops); err != nil {
				t.Fatal(err)
			}
			if len(ops.Running) > 0 {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
		t.Fatal("command is not running")
	}
	runs()
	next := openStore(t, r.url, r.box)
	led := rigs.Async(func() (store.Epoch, error) { return next.AcquireLeadership(ctx(t)) })
	runs(bson.E{Key: "killPending", Value: true})
	select {
	case got := <-led:
		t.Errorf("next relay leads while the write runs: %+v", got)
		hang("off")
	case <-time.After(500 * time.Millisecond):
		hang("off")
		if got := <-led; got.Err != nil {
			t.Error(got.Err)
		}
	}
	if got := <-wrote; got.Err == nil {
		t.Errorf("the old write succeeded: %+v", got.Value)
	}
	if got := r.status(t, "a"); got != "PENDING" {
		t.Errorf("got row status %s", got)
	}
}
