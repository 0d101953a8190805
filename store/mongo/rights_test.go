package mongo_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The role that Check suggests is sufficient for everything a relay does, and Check
// confirms it.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	at := set.Database()
	r := newRig(t, at, flowBox())
	r.insert(t, pending("1"), pending("2"), pending("3"))
	set.Run("admin", bson.D{{Key: "createUser", Value: "relay"}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: bson.A{}}})
	_, host, _ := strings.Cut(at, "@")
	url := "mongodb://relay:secret@" + host
	st := openStore(t, url, r.box)
	for _, right := range []string{"sluicebox_rig", "outbox_events", "relay"} {
		rigs.WantSetup(t, "without a right", st.Check(ctx(t)), right)
	}
	var setup *store.SetupError
	if !errors.As(st.Check(ctx(t)), &setup) {
		t.Fatal("no remedy")
	}
	_, rest, _ := strings.Cut(setup.Remedy, "createRole(")
	text, _, _ := strings.Cut(rest, ");\n")
	var role bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &role); err != nil {
		t.Fatalf("%v in %s", err, setup.Remedy)
	}
	set.Run("admin", append(bson.D{{Key: "createRole", Value: role[0].Value}}, role[1:]...))
	set.Run("admin", bson.D{{Key: "grantRolesToUser", Value: "relay"}, {Key: "roles", Value: bson.A{"sluicebox_rig"}}})

	if err := st.Check(ctx(t)); err != nil {
		t.Errorf("with the role: %v", err)
	}
	if found, err := st.Diagnose(ctx(t)); err != nil || store.CountFaults(found) > 0 {
		t.Errorf("Diagnose with the role: got %+v, %v", found, err)
	}
	if may, err := st.MayInstall(ctx(t)); may || err != nil {
		t.Errorf("MayInstall: got %v, %v", may, err)
	}
	everyCall(t, st)
	gone := r.box
	gone.Name, gone.Table = "events", "outbox_evens"
	rigs.WantSetup(t, "another collection", openStore(t, url, gone).Check(ctx(t)), "lacks find, update on", "outbox_evens", "grantPrivilegesToRole(")
	if err := r.docs().Drop(ctx(t)); err != nil {
		t.Fatal(err)
	}
	rigs.WantSetup(t, "a collection that was dropped", st.Check(ctx(t)), "does not exist")
	wrong := openStore(t, strings.Replace(url, "secret", "wrong", 1), r.box)
	rigs.WantSetup(t, "a wrong password", wrong.Check(ctx(t)), "refused the login")
}

// everyCall makes every call that a relay makes.
func everyCall(t *testing.T, st *mongo.Store) {
	t.Helper()
	lock, err := st.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	epoch, err := st.AcquireLeadership(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	rows := []store.ClaimRow{row("1"), row("2")}
	rigs.Claim(t, st, epoch, rows)
	rigs.Settle(t, st, epoch, []store.Outcome{rigs.Outcome("1", store.Completed), rigs.Outcome("2", store.Failed)})
	it := store.Item{Ref: row("3").Ref, Seq: 1}
	h := store.Hold{Lane: rigs.Lane(store.GroupOf("g")), Kind: store.Paused, Since: time.Now()}
	f := store.DeadLetterFilter{Outbox: "events"}
	_, looked := st.ReadSettled(ctx(t), rows)
	_, requeued := st.Requeue(ctx(t), epoch, f, 1)
	_, counted := st.CountFailed(ctx(t), f)
	_, loaded := st.LoadHolds(ctx(t))
	lanes := st.SpilledLanes(ctx(t), func(store.SpilledLane) {})
	err = errors.Join(lock.Ping(ctx(t)), st.SaveCheckpoint(ctx(t), epoch, store.Checkpoint{}), st.Spill(ctx(t), epoch, []store.Item{it}),
		st.DeleteSpilled(ctx(t), epoch, []store.SpilledRef{{Ref: it.Ref, Seq: 1}}), st.Hold(ctx(t), epoch, h), st.Release(ctx(t), epoch, h.Lane, h.Kind),
		looked, requeued, counted, loaded, lanes)
	if err != nil {
		t.Error(err)
	}
	for what, err := range rigs.Replay(ctx(t), st, epoch, "events") {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if groups := rigs.Groups(t, st); len(groups) != 2 {
		t.Errorf("got groups %v", groups)
	}
}
