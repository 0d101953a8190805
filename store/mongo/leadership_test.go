package mongo_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// impersonate stores a session in documents as that of the leader's writer.
func (r *rig) impersonate(t *testing.T, session *driver.Session, collections ...string) bson.Binary {
	t.Helper()
	subtype, data := session.ID().Lookup("id").Binary()
	id := bson.Binary{Subtype: subtype, Data: data}
	mine := bson.D{{Key: "$set", Value: bson.D{{Key: "session", Value: id}}}}
	for _, name := range collections {
		if _, err := r.db.Collection(name).UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "rig"}}, mine); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// freeze leaves a transaction open that has written the leader document, as a relay frozen
// in the middle of a claim does, and stores its session there as the leader's.
func (r *rig) freeze(t *testing.T, collections ...string) (wake func() error) {
	t.Helper()
	session, err := r.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.EndSession(t.Context()) })
	r.impersonate(t, session, collections...)
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	for _, name := range collections {
		count := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
		if _, err := r.db.Collection(name).UpdateOne(driver.NewSessionContext(ctx(t), session), bson.D{{Key: "_id", Value: "rig"}}, count); err != nil {
			t.Fatal(err)
		}
	}
	return func() error { return session.CommitTransaction(ctx(t)) }
}

// The next leader ends a frozen leader's open transaction at once, and the frozen leader
// commits nothing when it wakes.
func TestLeaderEndsFrozenTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.insert(t, pending("1"))
	wake := r.freeze(t, "sluicebox_leader")
	next := openStore(t, r.url, r.box)
	began := time.Now()
	epoch, err := next.AcquireLeadership(ctx(t))
	if err != nil || epoch != r.epoch+1 {
		t.Fatalf("next leader: got epoch %d, %v", epoch, err)
	}
	if took := time.Since(began); took > 20*time.Second { // a third of the server's own timeout
		t.Errorf("took %s", took)
	}
	if err := wake(); err == nil {
		t.Error("the frozen leader's transaction was committed")
	}
	if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("1")}); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("claim of the old leader: got %v", err)
	}
	if a := rigs.Claim(t, next, epoch, []store.ClaimRow{row("1")})[0]; a.Result != store.Claimed {
		t.Errorf("the next leader's claim: %s", a.Result)
	}
}

// A relay frozen while it acquires leadership also locks the lease document. Once the lease
// has expired, the next relay that requests the lock ends it.
func TestFrozenCandidateLosesLease(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	lock.Release() // ends its lease
	wake := r.freeze(t, "sluicebox_leader", "sluicebox_lease")
	next := openStore(t, r.url, r.box)
	began := time.Now()
	for ; ; <-time.After(20 * time.Millisecond) {
		got, err := next.Lock(ctx(t))
		if err == nil {
			defer got.Release()
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(err)
		}
	}
	if _, err := next.AcquireLeadership(ctx(t)); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if err := wake(); err == nil {
		t.Error("the frozen candidate's transaction was committed")
	}
}

// A store whose lease another relay has acquired neither raises the epoch nor kills the
// other's session.
func TestLostLeaseRaisesNoEpoch(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	// As if it had been frozen until its lease expired.
	over := bson.D{{Key: "$set", Value: bson.D{{Key: "until", Value: time.Unix(0, 0)}, {Key: "fence", Value: time.Unix(0, 0)}}}}
	if _, err := r.db.Collection("sluicebox_lease").UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "rig"}}, over); err != nil {
		t.Fatal(err)
	}
	next := openStore(t, r.url, r.box)
	taken, err := next.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	epoch, err := next.AcquireLeadership(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.AcquireLeadership(ctx(t)); !errors.Is(err, store.ErrNotLeader) || !strings.Contains(err.Error(), "relay lock lost") {
		t.Errorf("first relay leads again: got %v", err)
	}
	if err := lock.Ping(ctx(t)); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("ping of the lost lock: got %v", err)
	}
	if err := taken.Ping(ctx(t)); err != nil {
		t.Error(err)
	}
	if err := next.SaveCheckpoint(ctx(t), epoch, store.Checkpoint{}); err != nil {
		t.Error(err)
	}
}

// A lease expires by itself, and not earlier.
func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	pinged := time.Now()
	if err := lock.Ping(ctx(t)); err != nil {
		t.Fatal(err)
	}
	next := openStore(t, r.url, r.box)
	for {
		taken, err := next.Lock(ctx(t))
		if err == nil {
			taken.Release()
			break
		}
		if !errors.As(err, new(*store.LockedError)) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if after := time.Since(pinged); after < store.MinLockLease || after > 7*time.Second {
		t.Errorf("another relay acquired the lock %s after a ping", after)
	}
}
