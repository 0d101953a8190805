package mongo_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func pastHarness() capturetest.HistoryHarness {
	return capturetest.HistoryHarness{
		Setup:         func(t *testing.T) capturetest.Database { return newDatabase(t, servers.Mongo(t)) },
		ReadsFromTime: true,
		Parallel:      true,
		Readers:       func(t *testing.T, db capturetest.Database) int { return len(db.(*database).cursors(t)) },
		Disconnect:    func(t *testing.T, db capturetest.Database) { db.Disconnect(t) },
		Delete: func(t *testing.T, db capturetest.Database, ids []string) {
			d := db.(*database)
			box := &d.outboxes(outboxName)[0]
			in := bson.D{{Key: box.Layout.Columns.ID, Value: bson.D{{Key: "$in", Value: ids}}}}
			if n, err := d.db.Collection(box.Table).DeleteMany(t.Context(), in); err != nil || int(n.DeletedCount) != len(ids) {
				t.Errorf("got %+v deleted, %v", n, err)
			}
		},
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	capturetest.RunHistory(t, pastHarness())
	t.Run("odd names", func(t *testing.T) {
		h := pastHarness()
		h.Setup = func(t *testing.T) capturetest.Database { return newDatabaseOf(t, servers.Mongo(t), oddNames) }
		capturetest.RunHistoryLayout(t, h)
	})
}

// lostHistory needs a replica set of its own, because it loses its log and ends.
func lostHistory(set *servers.MongoSet) capturetest.HistoryHarness {
	same := func(change func(at *capture.StartPoint)) func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database {
		return func(_ *testing.T, db capturetest.Database, at *capture.StartPoint) capturetest.Database {
			change(at)
			return db
		}
	}
	h := pastHarness()
	h.Setup = func(t *testing.T) capturetest.Database { return newDatabase(t, set.Database()) }
	h.Losses = map[string]func(*testing.T, capturetest.Database, capture.StartPoint){
		"oplog rolled": func(t *testing.T, db capturetest.Database, at capture.StartPoint) {
			db.(*database).wantLost(t, at, "")
			set.RollOplog()
			db.(*database).wantLost(t, at, "the oplog begins at")
		},
	}
	h.OtherLogs = map[string]func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database{
		"another database": func(t *testing.T, _ capturetest.Database, _ *capture.StartPoint) capturetest.Database {
			return newDatabase(t, set.Database())
		},
		"another set": func(t *testing.T, _ capturetest.Database, _ *capture.StartPoint) capturetest.Database {
			return newDatabase(t, servers.Mongo(t))
		},
		"a state of before": same(func(at *capture.StartPoint) {
			_, behind, _ := strings.Cut(string(at.Position), ".")
			at.Position = "4000000000." + at.Position[len(at.Position)-len(behind):]
		}),
		"a checkpoint of nobody's": same(func(at *capture.StartPoint) { at.Origin = "" }),
		"not a position":           same(func(at *capture.StartPoint) { at.Position = "0-1-4711" }),
	}
	return h
}

func TestHistoryLost(t *testing.T) {
	t.Parallel()
	h := lostHistory(smallOplog(t))
	h.Shutdown = func(t *testing.T) (capturetest.Database, func() time.Duration) {
		set := servers.StartMongo(t, 1, nil) // the oplog of the shared set has no room for the rows in transit
		return newDatabase(t, set.Database()), func() time.Duration { return set.Stop("fast") }
	}
	capturetest.RunHistoryLost(t, h)
}

// wantLost checks whether the server still has the log after a position, alone and before a
// position of another log.
func (d *database) wantLost(t *testing.T, at capture.StartPoint, why string) {
	t.Helper()
	other := store.Checkpoint{Origin: "mongodb/another", Position: at.Position}
	src := newSource(t, d.config())
	defer src.Close()
	got, err := src.LostReasons(t.Context(), []store.Checkpoint{at.Checkpoint, other})
	if err != nil || len(got) != 2 || (got[0] == "") != (why == "") || !strings.Contains(got[0], why) || got[1] != "" {
		t.Errorf("got lost reasons %q, %v, want %q", got, err, why)
	}
}

// A role that may not read the oplog may read from a time on.
func TestHistoryLeastRole(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	d := newDatabase(t, set.Database())
	d.stream = d.newRole(t, "least", role("read", d.db.Name()))
	fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
	since := time.Now()
	d.insert(t, "one", "two")
	fo.Rows(2)
	ids, err := d.again(t, capture.StartPoint{Since: since}, fo.Position)
	if err != nil || !slices.Equal(ids, []string{"one", "two"}) {
		t.Errorf("got rows %q, %v", ids, err)
	}
	d.wantLost(t, capture.StartPoint{Checkpoint: store.Checkpoint{Origin: o.Origin, Position: "1.1"}}, "")
}

// again reads a range once more and returns the rows.
func (d *database) again(t *testing.T, at capture.StartPoint, until store.Position) ([]string, error) {
	t.Helper()
	return capturetest.ReadRange(t, newSource(t, d.config()), at, until, nil)
}

// A collection dropped inside the range ends the read there, as it ended the relay's log. A
// collection dropped before or after the range does not.
func TestHistoryCollectionDropped(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]bson.D{
		"collection": {{Key: "drop", Value: events}},
		"database":   {{Key: "dropDatabase", Value: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t, servers.Mongo(t))
			fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
			d.insert(t, "one", "two")
			fo.Rows(2)
			at := capture.StartPoint{Checkpoint: store.Checkpoint{Origin: o.Origin, Position: o.From}}
			before := fo.Position
			d.run(t, drop)
			if err := fo.WaitEnd(); !capture.IsFinal(err) {
				t.Fatalf("the relay's source ended with %v", err)
			}
			d.insert(t, "three")
			fo, _, anew := d.follow(t, d.config(), store.Checkpoint{})
			d.insert(t, "four")
			fo.Rows(1)
			var lost *capture.LostError
			ids, err := d.again(t, at, fo.Position)
			if !errors.As(err, &lost) || !strings.Contains(lost.Reason, "dropped") || !slices.Equal(ids, []string{"one", "two"}) {
				t.Errorf("across the drop: got rows %q, %v", ids, err)
			}
			if ids, err := d.again(t, at, before); err != nil || !slices.Equal(ids, []string{"one", "two"}) {
				t.Errorf("before the drop: got rows %q, %v", ids, err)
			}
			at.Position = anew.From
			if ids, err := d.again(t, at, fo.Position); err != nil || !slices.Equal(ids, []string{"four"}) {
				t.Errorf("after the drop: got rows %q, %v", ids, err)
			}
		})
	}
}
