package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/documents"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestLedger runs the suite of the ledger's backends.
func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, func(t *testing.T) ledgertest.Database {
		d := ledgerDatabase{servers.Mongo(t)}
		if err := openRelay(t, d.url, "first").Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		return d
	})
}

type ledgerDatabase struct{ url string }

type ledgerBackend struct {
	ledger.Backend
	store.Leadership
}

func openRelay(t testing.TB, url, name string) *mongo.Store {
	t.Helper()
	st, err := mongo.New(mongo.Config{URL: url, Name: name, Outboxes: []store.Outbox{flowBox()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

// Open implements ledgertest.Database.
func (d ledgerDatabase) Open(t testing.TB, relay string) ledgertest.Backend {
	st := openRelay(t, d.url, relay)
	return ledgerBackend{st.Backend(), st}
}

// record is the filter for a record of the rig's relay.
func record(kind, key string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "relay", Value: "rig"}, {Key: "kind", Value: kind}, {Key: "key", Value: key}}}}
}

// recordKeys returns the keys of a kind in order.
func (r *rig) recordKeys(t *testing.T, kind string) string {
	t.Helper()
	var keys []string
	err := r.store.Backend().View(ctx(t), func(ctx context.Context, reader ledger.Reader) error {
		return reader.List(ctx, kind, "", 0, func(rec ledger.Record) error {
			keys = append(keys, rec.Key)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(keys, " ")
}

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
		var counted struct{ Version int }
		if err := r.db.Collection("sluicebox_record").FindOne(ctx(t), record("relay", "requests")).Decode(&counted); err != nil {
			t.Fatal(err)
		}
		return counted.Version
	})
	for key, nth := range map[string]int{"last": together + 1, "job": together + 4} {
		doc, err := r.db.Collection("sluicebox_record").FindOne(ctx(t), record("job", key)).Raw()
		if want := fmt.Sprintf(`"nth":%d,`, nth); err != nil || !strings.Contains(doc.Lookup("body").StringValue(), want) {
			t.Errorf("replay %s is %s, %v; want %s", key, doc, err, want)
		}
	}
}

// TestOldReplays: the end of a replay deletes replays that ended long ago.
func TestOldReplays(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	for _, id := range []string{"old", "young", "open", "last"} {
		state := store.JobDone
		if id == "open" {
			state = store.JobPlaying
		}
		rigs.EndJob(t, r.store, r.epoch, "events", id, state)
		for _, past := range []struct {
			id, field string
			hours     time.Duration
		}{{"open", "startedAt", 200}, {"old", "finishedAt", 169}, {"young", "finishedAt", 167}} {
			at := map[string]any{past.field: time.Now().Add(-past.hours * time.Hour).UTC()}
			if err := documents.SetFields(ctx(t), r.db, "rig", "job", past.id, at); err != nil && past.id == id {
				t.Fatal(err)
			}
		}
	}
	for kind, want := range map[string]string{
		"job": "last open young", "job-spec": "last open young", "job-error": "last/0000000000000000001 open/0000000000000000001 young/0000000000000000001",
	} {
		if got := r.recordKeys(t, kind); got != want {
			t.Errorf("the records %s are %s, want %s", kind, got, want)
		}
	}
}

// TestBatchesOfReplay: a batch does not read the replay's record, which the last batch wrote.
// It notices that another process has changed the record.
func TestBatchesOfReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	if err := r.store.RequestReplay(ctx(t), "job", "{}"); err != nil {
		t.Fatal(err)
	}
	var done []store.FinishedRow
	var rows []store.ReplayRow
	for i := range 6 {
		it := store.Item{Ref: store.Ref{Outbox: "events", ID: fmt.Sprint(i)}, Group: store.GroupOf("g")}
		rows = append(rows, store.ReplayRow{N: int64(i + 1), Item: it})
		done = append(done, store.FinishedRow{N: int64(i + 1), Lane: it.Lane(), ID: it.ID})
	}
	finish := func(i int) {
		t.Helper()
		if err := r.store.FinishRows(ctx(t), r.epoch, "job", done[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, total, sent, skipped int64) {
		t.Helper()
		jobs, err := r.store.Jobs(ctx(t))
		if err != nil || len(jobs) != 1 || jobs[0].Total != total || jobs[0].Sent != sent || jobs[0].Skipped != skipped {
			t.Errorf("%s: the replays are %+v, %v", what, jobs, err)
		}
	}

	for range 2 {
		if err := r.store.CopyRows(ctx(t), r.epoch, "job", rows, store.ReplayCursor{Skip: 6}); err != nil {
			t.Fatal(err)
		}
	}
	reads := r.profile(t, "sluicebox_record", func() {
		finish(0)
		if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Seq: 1}); err != nil {
			t.Fatal(err)
		}
		finish(1)
	}, "query")
	if len(reads) > 0 {
		t.Errorf("batches read records: %+v", reads)
	}
	want("two rows", 6, 2, 0)

	if err := documents.SetFields(ctx(t), r.db, "rig", "job", "job", map[string]any{"skipped": 7}); err != nil {
		t.Fatal(err)
	}
	finish(2)
	want("changed by another process", 6, 3, 7)
	if n, err := r.store.ClearRows(ctx(t), r.epoch, "none", 5); n != 0 || err != nil {
		t.Errorf("%d rows of no replay, %v", n, err)
	}
	if n, err := r.store.ClearRows(ctx(t), r.epoch, "job", 5); n != 3 || err != nil {
		t.Errorf("%d rows were cleared, %v", n, err)
	}
	if n, err := r.store.ClearRows(ctx(t), r.epoch, "job", 5); n != 0 || err != nil {
		t.Errorf("%d rows were cleared again, %v", n, err)
	}
	want("cleared", 3, 3, 7)
	if _, err := r.db.Collection("sluicebox_record").DeleteOne(ctx(t), record("job", "job")); err != nil {
		t.Fatal(err)
	}
	if err := r.store.SetRowCounts(ctx(t), r.epoch, "job", 1, 1); !errors.Is(err, store.ErrNoJob) {
		t.Errorf("counts of a deleted replay: %v", err)
	}
}

// TestQueuePlans: a lane, a number and the id of a spilled row are found by their indices,
// and counting the lanes reads no documents.
func TestQueuePlans(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	if err := r.store.RequestReplay(ctx(t), "job", "{}"); err != nil {
		t.Fatal(err)
	}
	rows, items := make([]store.ReplayRow, 2000), make([]store.Item, 2000)
	for i := range rows {
		it := store.Item{Ref: store.Ref{Outbox: "events", ID: fmt.Sprint("row ", i)}, Group: store.GroupOf(string(rune('a' + i%20)))}
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: it}
		items[i] = it
		items[i].Seq = store.Seq(i + 1)
	}
	if err := errors.Join(r.store.CopyRows(ctx(t), r.epoch, "job", rows, store.ReplayCursor{}), r.store.Spill(ctx(t), r.epoch, items)); err != nil {
		t.Fatal(err)
	}
	r.insert(t, pending("row 7"), pending("row x"))

	lanes := func() {
		n := 0
		if err := r.store.SpilledLanes(ctx(t), func(store.SpilledLane) { n++ }); err != nil || n != 20 {
			t.Errorf("%d lanes, %v", n, err)
		}
	}
	unsettled := func() {
		for _, limit := range []int{10, 1 << 30} {
			if left := r.unsettled(t, store.UnsettledQuery{Limit: limit}); len(left) != 1 || left[0].ID != "row x" {
				t.Errorf("unsettled rows: %+v", left)
			}
		}
	}
	for i := range 5 {
		lane := rows[i].Lane()
		for what, c := range map[string]struct {
			docs, keys int
			run        func() error
		}{
			"the rows of a lane": {10, 15, func() error {
				got, err := r.store.ReplayRows(ctx(t), "job", []store.ReplayRange{{Outbox: "events", Lane: lane.Hash(), After: 900}}, 10)
				if err == nil && len(got[0]) != 10 {
					err = fmt.Errorf("%d rows", len(got[0]))
				}
				return err
			}},
			"spilled rows of a lane": {10, 15, func() error {
				got, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events", Lane: lane.Hash(), After: 900}}, 10)
				if err == nil && len(got[0]) != 10 {
					err = fmt.Errorf("%d rows", len(got[0]))
				}
				return err
			}},
			"heads": {150, 150, func() error {
				_, err := r.store.ReplayLanes(ctx(t), "job", int64(i), 1)
				return err
			}},
			"finished rows": {2, 4, func() error {
				done := store.FinishedRow{N: int64(500 + i), Lane: rows[499+i].Lane(), Result: store.ReplayRefused}
				return r.store.FinishRows(ctx(t), r.epoch, "job", []store.FinishedRow{done})
			}},
			"new and known rows": {2, 5, func() error { return r.store.Spill(ctx(t), r.epoch, items[i:i+2]) }},
			"deleted rows": {2, 4, func() error {
				it := items[1000+i]
				return r.store.DeleteSpilled(ctx(t), r.epoch, []store.SpilledRef{{Ref: it.Ref, Seq: it.Seq}})
			}},
			"the spilled lanes":    {1, 2100, func() error { lanes(); return nil }},
			"whether rows spilled": {1, 2100, func() error { unsettled(); return nil }},
		} {
			profiles := r.profile(t, "sluicebox_queue", func() {
				if err := c.run(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
			if len(profiles) == 0 {
				t.Errorf("%s: no statements", what)
			}
			for _, p := range profiles {
				if p.Docs > c.docs || p.Keys > c.keys {
					t.Errorf("%s: %+v, want %d documents and %d keys at most", what, p, c.docs, c.keys)
				}
			}
		}
	}
}

// profiled is a statement as the server's profiler describes it.
type profiled struct {
	Op     string `bson:"op"`
	Docs   int    `bson:"docsExamined"`
	Keys   int    `bson:"keysExamined"`
	Plan   string `bson:"planSummary"`
	Sorted bool   `bson:"hasSortStage"`
}

// profile returns the statements on a collection while run runs, of some kinds or all.
func (r *rig) profile(t *testing.T, name string, run func(), ops ...string) (list []profiled) {
	t.Helper()
	level := func(n int) {
		t.Helper()
		if err := r.db.RunCommand(ctx(t), bson.D{{Key: "profile", Value: n}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	level(2)
	run()
	level(0)
	filter := bson.D{{Key: "ns", Value: r.db.Name() + "." + name}}
	if len(ops) > 0 {
		filter = append(filter, bson.E{Key: "op", Value: bson.D{{Key: "$in", Value: ops}}})
	}
	found, err := r.db.Collection("system.profile").Find(ctx(t), filter)
	if err == nil {
		err = found.All(ctx(t), &list)
	}
	if err == nil {
		err = r.db.Collection("system.profile").Drop(ctx(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}
