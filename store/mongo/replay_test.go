package mongo_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRequestsCounted: requests are counted per relay, including the first ones when they are
// concurrent.
func TestRequestsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	const together = 4
	asked := make(chan error, together)
	for i := range together {
		st := openStore(t, r.url, r.box)
		c := ctx(t)
		go func() { asked <- st.RequestReplay(c, string(rune('a'+i)), "{}") }()
	}
	for range together {
		if err := <-asked; err != nil {
			t.Error(err)
		}
	}
	if err := r.store.RequestReplay(ctx(t), "last", "{}"); err != nil {
		t.Fatal(err)
	}
	rigs.CheckRequestCounts(t, r.store, func() int {
		var count struct {
			N int `bson:"n"`
		}
		if err := r.db.Collection("sluicebox_wish").FindOne(ctx(t), bson.D{{Key: "_id", Value: "rig"}}).Decode(&count); err != nil {
			t.Fatal(err)
		}
		return count.N
	})
	var nth []int64
	if err := r.db.Collection("sluicebox_replay").Distinct(ctx(t), "nth", bson.D{}).Decode(&nth); err != nil || len(nth) != together+2 || !slices.Contains(nth, together+1) || !slices.Contains(nth, together+4) {
		t.Errorf("got replay numbers %d, %v", nth, err)
	}
}

// TestOldReplays: the end of a replay deletes replays that ended long ago.
func TestOldReplays(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	in := r.db.Collection("sluicebox_replay")
	for _, id := range []string{"old", "young", "open", "last"} {
		state := store.JobDone
		if id == "open" {
			state = store.JobPlaying
		}
		rigs.EndJob(t, r.store, r.epoch, "events", id, state)
		for _, past := range []struct {
			id, field string
			hours     int
		}{{"open", "beganAt", 200}, {"old", "finishedAt", 169}, {"young", "finishedAt", 167}} {
			ago := bson.D{{Key: "$subtract", Value: bson.A{"$$NOW", past.hours * 3_600_000}}}
			change := bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: past.field, Value: ago}}}}}
			if _, err := in.UpdateMany(ctx(t), bson.D{{Key: "_id.job", Value: past.id}}, change); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"sluicebox_replay", "sluicebox_replay_error"} {
		var of []string
		if err := r.db.Collection(name).Distinct(ctx(t), "_id.job", bson.D{}).Decode(&of); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(of); strings.Join(of, " ") != "last open young" {
			t.Errorf("%s is of %s", name, of)
		}
	}
}

// TestUpgradeToReplays: collections of the previous version are migrated.
func TestUpgradeToReplays(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	item := store.Item{Ref: store.Ref{Outbox: "events", ID: "1"}, Kind: "EVENT", Group: store.GroupOf("g"), Seq: 7}
	if err := r.store.Spill(ctx(t), r.epoch, []store.Item{item}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Hold(ctx(t), r.epoch, store.Hold{Lane: item.Lane(), Kind: store.Paused, Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"wish", "named", "replay", "replay_row", "replay_error"} {
		if err := r.db.Collection("sluicebox_" + name).Drop(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	older := bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: 1}}}}
	if _, err := r.db.Collection("sluicebox_meta").UpdateOne(ctx(t), bson.D{{Key: "_id", Value: "version"}}, older); err != nil {
		t.Fatal(err)
	}
	_, named := r.store.Savepoints(ctx(t))
	_, jobs := r.store.Jobs(ctx(t))
	_, errs := r.store.JobErrors(ctx(t), "job", 1)
	for what, err := range map[string]error{
		"check": r.store.Check(ctx(t)), "named": named, "jobs": jobs, "errors": errs, "wish": r.store.RequestReplay(ctx(t), "job", "{}"),
	} {
		rigs.WantSetup(t, what, err, "sluicebox init")
	}
	if there, err := r.db.ListCollectionNames(ctx(t), bson.D{{Key: "name", Value: "sluicebox_wish"}}); err != nil || len(there) > 0 {
		t.Errorf("request created %q, %v", there, err)
	}
	if may, err := r.store.MayInstall(ctx(t)); err != nil || !may {
		t.Errorf("MayInstall: got %t, %v", may, err)
	}
	before := r.epoch
	r.epoch = rigs.InstallAndLead(t, r.store)
	parked, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events", Lane: item.Lane().Hash()}}, 5)
	if err != nil || len(parked[0]) != 0 { // hashed as before version 3
		t.Errorf("got spilled rows %+v, %v", parked, err)
	}
	if holds, err := r.store.LoadHolds(ctx(t)); err != nil || len(holds) != 0 || r.epoch != before+1 {
		t.Errorf("got holds %+v, %v; epoch %d", holds, err, r.epoch)
	}
	rigs.EndJob(t, r.store, r.epoch, "events", "job", store.JobDone)
}

// TestReplayPlans: reading a lane uses its index and skips earlier rows.
func TestReplayPlans(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	if err := r.store.RequestReplay(ctx(t), "job", "{}"); err != nil {
		t.Fatal(err)
	}
	rows := make([]store.ReplayRow, 2000)
	for i := range rows {
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: store.Item{Ref: store.Ref{Outbox: "events", ID: "x"}, Group: store.GroupOf(string(rune('a' + i%20)))}}
	}
	if err := r.store.CopyRows(ctx(t), r.epoch, "job", rows, store.ReplayCursor{}); err != nil {
		t.Fatal(err)
	}
	if err := r.db.RunCommand(ctx(t), bson.D{{Key: "profile", Value: 2}}).Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		lane := rows[i].Lane()
		got, err := r.store.ReplayRows(ctx(t), "job", []store.ReplayRange{{Outbox: "events", Lane: lane.Hash(), After: 900}}, 10)
		if err != nil || len(got[0]) != 10 {
			t.Fatalf("%d rows, %v", len(got), err)
		}
		if _, err := r.store.ReplayLanes(ctx(t), "job", int64(i), 1); err != nil {
			t.Fatal(err)
		}
		done := store.FinishedRow{N: int64(500 + i), Lane: rows[499+i].Lane(), Result: store.ReplayRefused}
		if err := r.store.FinishRows(ctx(t), r.epoch, "job", []store.FinishedRow{done}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.db.RunCommand(ctx(t), bson.D{{Key: "profile", Value: 0}}).Err(); err != nil {
		t.Fatal(err)
	}
	r.wantPlans(t, "sluicebox_replay_row", 20, 150)
	r.wantPlans(t, "sluicebox_replay_error", 5, 2)
}

// wantPlans checks the profiled plans of a collection.
func (r *rig) wantPlans(t *testing.T, name string, least, examined int) {
	t.Helper()
	found, err := r.db.Collection("system.profile").Find(ctx(t), bson.D{{Key: "ns", Value: r.db.Name() + "." + name}})
	if err != nil {
		t.Fatal(err)
	}
	var profiles []struct {
		Op       string `bson:"op"`
		Examined int    `bson:"docsExamined"`
		Plan     string `bson:"planSummary"`
	}
	if err := found.All(ctx(t), &profiles); err != nil {
		t.Fatal(err)
	}
	if len(profiles) < least {
		t.Errorf("got %d statements on %s", len(profiles), name)
	}
	for _, p := range profiles {
		if p.Examined > examined || strings.Contains(p.Plan, "COLLSCAN") {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
