package mongo_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// smallOplog is a replica set whose oplog is truncated soon: the server discards the part
// that its last checkpoint no longer needs.
func smallOplog(t *testing.T) *servers.MongoSet {
	t.Helper()
	return servers.StartMongo(t, 1, map[string]string{"oplogSize": "4", "syncdelay": "1"})
}

// The oplog is truncated past a paused reader.
func TestOplogTruncated(t *testing.T) {
	t.Parallel()
	set := smallOplog(t)
	capturetest.RunLost(t, capturetest.Harness{
		Log:   true,
		Setup: func(t *testing.T) capturetest.Database { return newDatabase(t, set.Database()) },
		Losses: map[string]func(t *testing.T, db capturetest.Database){
			"oplog rolled": func(t *testing.T, db capturetest.Database) {
				set.RollOplog()
				db.Disconnect(t)
			},
			"oplog rolled past an open cursor": func(*testing.T, capturetest.Database) { set.RollOplog() },
		},
	})
}

// Open detects a checkpoint that the oplog no longer holds.
func TestCheckpointBeforeOplog(t *testing.T) {
	t.Parallel()
	set := smallOplog(t)
	d := newDatabase(t, set.Database())
	fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
	d.insert(t, "one")
	fo.Rows(1)
	fo.End()
	set.RollOplog()
	for _, at := range []store.Position{fo.Position, o.From} {
		_, again := d.opening(t, d.config(), store.Checkpoint{Origin: o.Origin, Position: at})
		t.Log(again.SnapshotReason)
		if again.View == nil || !strings.Contains(again.SnapshotReason, "oplog no longer reaches back") {
			t.Errorf("checkpoint %s was accepted: %q", at, again.SnapshotReason)
		}
	}
}

// Events that remove the collection end the log, and the next run continues with the
// collections as they are then.
func TestCollectionRemoved(t *testing.T) {
	rename := func(t *testing.T, d *database, from, to string, drop bool) {
		t.Helper()
		d.admin(t, bson.D{{Key: "renameCollection", Value: d.db.Name() + "." + from}, {Key: "to", Value: d.db.Name() + "." + to}, {Key: "dropTarget", Value: drop}})
	}
	for name, c := range map[string]struct {
		take   func(t *testing.T, d *database)
		reason string
		there  []string // documents that the snapshot finds
	}{
		"dropped": {func(t *testing.T, d *database) {
			d.run(t, bson.D{{Key: "drop", Value: events}})
		}, "dropped", []string{"after"}},
		"dropped and made again": {func(t *testing.T, d *database) {
			d.run(t, bson.D{{Key: "drop", Value: events}})
			d.run(t, bson.D{{Key: "create", Value: events}})
		}, "dropped", []string{"after"}},
		"renamed": {func(t *testing.T, d *database) {
			rename(t, d, events, "aside", false)
		}, "renamed to aside", []string{"after"}},
		"renamed and back": {func(t *testing.T, d *database) {
			rename(t, d, events, "aside", false)
			rename(t, d, "aside", events, false)
		}, "renamed to aside", []string{"first", "after"}},
		"another in its place": {func(t *testing.T, d *database) {
			d.put(t, "staged", document(&d.outboxes(outboxName)[0], capturetest.Row{ID: "staged", Payload: "x"}))
			rename(t, d, "staged", events, true)
		}, "replaced ", []string{"staged", "after"}},
		"written out by an aggregation": {func(t *testing.T, d *database) {
			d.run(t, bson.D{{Key: "aggregate", Value: events}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$out", Value: events}}}}, {Key: "cursor", Value: bson.D{}}})
		}, "replaced ", []string{"first", "after"}},
		"database dropped": {func(t *testing.T, d *database) {
			d.run(t, bson.D{{Key: "dropDatabase", Value: 1}})
		}, "dropped", []string{"after"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t, servers.Mongo(t))
			fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
			d.insert(t, "first")
			fo.Rows(1)
			c.take(t, d)
			err := fo.WaitEnd()
			t.Log(err)
			var lost *capture.LostError
			if !errors.As(err, &lost) || !strings.Contains(lost.Reason, c.reason) {
				t.Fatalf("the source ended with %v, want a lost log: %s", err, c.reason)
			}
			d.insert(t, "after")
			if got := d.unsettled(t); strings.Join(got, " ") != strings.Join(c.there, " ") {
				t.Errorf("view: got %q, want %q", got, c.there)
			}
			again, _, _ := d.follow(t, d.config(), store.Checkpoint{})
			d.insert(t, "later")
			again.Rows(1)
			again.Expect("later")
			// From the old checkpoint the log is lost again, and not skipped.
			old, _, opening := d.follow(t, d.config(), store.Checkpoint{Origin: o.Origin, Position: fo.Position})
			if opening.View != nil {
				return
			}
			if err := old.WaitEnd(); !errors.As(err, &lost) {
				t.Errorf("from the old checkpoint the source ended with %v", err)
			}
		})
	}
}

// unsettled returns the rows that a view shows.
func (d *database) unsettled(t *testing.T) (ids []string) {
	t.Helper()
	view, err := d.views.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	items, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: outboxName, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range items {
		ids = append(ids, items[i].ID)
	}
	return ids
}

// Events of other collections do not matter.
func TestOtherCollectionRemoved(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	fo, _, _ := d.follow(t, d.config(), store.Checkpoint{})
	d.Unrelated(t)
	d.admin(t, bson.D{{Key: "renameCollection", Value: d.db.Name() + ".unrelated"}, {Key: "to", Value: d.db.Name() + ".aside"}})
	d.run(t, bson.D{{Key: "drop", Value: "aside"}})
	d.insert(t, "one")
	fo.Rows(1)
	fo.Expect("one")
}

// A checkpoint of another replica set with the same name is refused, and so is a checkpoint
// of a set that was restored to an earlier state.
func TestOtherReplicaSet(t *testing.T) {
	t.Parallel()
	one, other := servers.StartMongo(t, 1, nil), servers.StartMongo(t, 1, nil)
	d := newDatabase(t, one.Database())
	fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
	d.insert(t, "one")
	fo.Rows(1)
	fo.End()
	elsewhere := newDatabase(t, other.Database())
	_, opening := elsewhere.opening(t, elsewhere.config(), store.Checkpoint{Origin: o.Origin, Position: fo.Position})
	t.Log(opening.SnapshotReason)
	if opening.View == nil || !strings.Contains(opening.SnapshotReason, o.Origin) || !strings.Contains(opening.SnapshotReason, opening.Origin) {
		t.Errorf("checkpoint of another replica set was accepted: %q", opening.SnapshotReason)
	}
	ahead := store.Position("4000000000" + string(fo.Position[strings.IndexByte(string(fo.Position), '.'):]))
	_, opening = d.opening(t, d.config(), store.Checkpoint{Origin: o.Origin, Position: ahead})
	t.Log(opening.SnapshotReason)
	if opening.View == nil || !strings.Contains(opening.SnapshotReason, "restored") {
		t.Errorf("checkpoint of the future was accepted: %q", opening.SnapshotReason)
	}
}

// A checkpoint with a token that the server cannot read is not retried forever.
func TestUnreadableToken(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
	d.insert(t, "one")
	fo.Rows(1)
	fo.End()
	for _, damage := range []string{"2B092C", "2BFF", "FFFF"} { // the first is a version that is not yet known
		at := store.Position(strings.Replace(string(fo.Position), "2B022C", damage, 1))
		_, opening := d.opening(t, d.config(), store.Checkpoint{Origin: o.Origin, Position: at})
		t.Log(opening.SnapshotReason)
		if opening.View == nil || opening.SnapshotReason == "" {
			t.Errorf("checkpoint %s was accepted: %q", at, opening.SnapshotReason)
		}
	}
}

// A server that reads no stream at all, not even from the current time, is no reason to
// discard the checkpoint.
func TestTransientAnswer(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, map[string]string{"setParameter enableTestCommands": "1"})
	d := newDatabase(t, set.Database())
	fo, _, o := d.follow(t, d.config(), store.Checkpoint{})
	d.insert(t, "one")
	fo.Rows(1)
	fo.End()
	const keyNotFound = 211
	set.Run("admin", bson.D{
		{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "skip", Value: 1}}}, // the first try starts at the current time
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"aggregate"}}, {Key: "errorCode", Value: keyNotFound}}},
	})
	src := newSource(t, d.config())
	defer src.Close()
	opening, err := src.Open(t.Context(), store.Checkpoint{Origin: o.Origin, Position: fo.Position}, d.tables())
	if err == nil {
		t.Errorf("Open succeeded: %+v", opening)
	}
	set.Run("admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "off"}})
	if _, again := d.opening(t, d.config(), store.Checkpoint{Origin: o.Origin, Position: fo.Position}); again.View != nil {
		t.Errorf("took a snapshot: %s", again.SnapshotReason)
	}
}

// A document without an id to claim it by ends the log, and the error names it; the next
// view belongs to the store.
func TestNoID(t *testing.T) {
	d := newDatabaseOf(t, servers.Mongo(t), func(name string) []store.Outbox {
		return []store.Outbox{{Name: name, Table: events, Layout: mongostore.OutboxMessagesText()}}
	})
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	d.put(t, events, bson.D{{Key: "id", Value: "good"}, {Key: "type", Value: "EVENT"}, {Key: "payload", Value: "x"}, {Key: "status", Value: 0}})
	d.put(t, events, bson.D{{Key: "type", Value: "EVENT"}, {Key: "payload", Value: "x"}, {Key: "status", Value: 0}})
	out, done := make(chan capture.Batch, 10), make(chan error, 1)
	go func() { done <- src.Run(context.Background(), capture.Span{From: o.From}, out) }()
	err := <-done
	t.Log(err)
	var lost *capture.LostError
	if !errors.As(err, &lost) || !strings.Contains(lost.Reason, "without an id") || !strings.Contains(lost.Reason, events) {
		t.Errorf("the run ended with %v", err)
	}
	if b := <-out; len(b.Items) != 1 || b.Items[0].ID != "good" {
		t.Errorf("got %+v before the document without an id", b)
	}
}
