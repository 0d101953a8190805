package mongo_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// as returns the URL of the database for another user.
func (d *database) as(t *testing.T, user string) string {
	t.Helper()
	at, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(user, "secret of "+user)
	return at.String()
}

// newRole creates a user with some roles and returns the database's URL for it.
func (d *database) newRole(t *testing.T, user string, roles ...bson.D) string {
	t.Helper()
	d.admin(t, bson.D{{Key: "createUser", Value: user}, {Key: "pwd", Value: "secret of " + user}, {Key: "roles", Value: roles}})
	return d.as(t, user)
}

func role(name, db string) bson.D { return bson.D{{Key: "role", Value: name}, {Key: "db", Value: db}} }

// A role that loses its privilege for the stream is reported, with the statement that
// restores it.
func TestFaults(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	capturetest.RunLost(t, capturetest.Harness{
		Log: true,
		Setup: func(t *testing.T) capturetest.Database {
			d := newDatabase(t, set.Database())
			d.stream = d.newRole(t, d.name, role("read", d.db.Name()), role("read", "local"), role("clusterMonitor", "admin"))
			return d
		},
		Faults: []capturetest.Fault{{
			Name: "role may not stream",
			Break: func(t *testing.T, db capturetest.Database) {
				d := db.(*database)
				d.admin(t, bson.D{{Key: "revokeRolesFromUser", Value: d.name}, {Key: "roles", Value: bson.A{role("read", d.db.Name())}}})
				d.Disconnect(t)
			},
			Fix: func(t *testing.T, db capturetest.Database) {
				d := db.(*database)
				d.admin(t, bson.D{{Key: "grantRolesToUser", Value: d.name}, {Key: "roles", Value: bson.A{role("read", d.db.Name())}}})
			},
			Remedy: `grantRolesToUser("t`,
		}},
	})
}

// The minimal privileges for a stream, and the findings about the others.
func TestLeastRole(t *testing.T) {
	t.Parallel()
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	d := newDatabase(t, set.Database())
	d.admin(t, bson.D{
		{Key: "createRole", Value: "least"}, {Key: "roles", Value: bson.A{}},
		{Key: "privileges", Value: bson.A{bson.D{
			{Key: "resource", Value: bson.D{{Key: "db", Value: d.db.Name()}, {Key: "collection", Value: ""}}},
			{Key: "actions", Value: bson.A{"find", "changeStream"}},
		}}},
	})
	d.stream = d.newRole(t, "least", role("least", "admin"))
	fo, src, o := d.follow(t, d.config(), store.Checkpoint{})
	d.insert(t, "one")
	fo.Rows(1)
	if kept, err := src.Retained(t.Context()); err != nil || kept != (capture.RetainedLog{}) {
		t.Errorf("retained: %+v, %v", kept, err)
	}
	findings := diagnosed(t, src)
	for subject, remedy := range map[string]string{
		"identity": `db.getSiblingDB("admin").grantRolesToUser("least", [{role: "clusterMonitor", db: "admin"}])`,
		"oplog":    `db.getSiblingDB("admin").grantRolesToUser("least", [{role: "read", db: "local"}])`,
	} {
		if f := findings[subject]; f.Grade != store.GradeAdvice || !strings.Contains(f.Remedy, remedy) {
			t.Errorf("%s: %+v", subject, f)
		}
	}
	// The same replica set, seen by a role that may read its id.
	fo.End()
	d.stream = ""
	_, again := d.opening(t, d.config(), store.Checkpoint{Origin: o.Origin, Position: fo.Position})
	if again.View != nil {
		t.Errorf("checkpoint was not accepted: %s", again.SnapshotReason)
	}
}

func diagnosed(t *testing.T, src *mongo.Source) map[string]store.Finding {
	t.Helper()
	list, err := src.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]store.Finding{}
	for _, f := range list {
		t.Logf("%s %s: %s; %s", f.Grade, f.Subject, f.Text, f.Remedy)
		found[f.Subject] = f
	}
	return found
}

func noStream(t *testing.T, src *mongo.Source) *capture.NoStreamError {
	t.Helper()
	err := src.Ready(t.Context())
	t.Log(err)
	var no *capture.NoStreamError
	if !errors.As(err, &no) {
		t.Fatalf("%v, want a *capture.NoStreamError", err)
	}
	return no
}

// A server outside a replica set has no stream; it gets one while the relay polls.
func TestStandalone(t *testing.T) {
	t.Parallel()
	set := servers.StandaloneMongo(t, nil)
	d := newDatabase(t, set.Database())
	src := newSource(t, d.config())
	if no := noStream(t, src); !strings.Contains(no.Error(), "rs.initiate()") {
		t.Errorf("the error does not say what to do: %v", no)
	}
	if f := diagnosed(t, src)["server"]; f.Grade != store.GradeFault {
		t.Errorf("Diagnose: got %+v", f)
	}
	src.Close()
	set.ConvertToReplicaSet()
	src = newSource(t, d.config())
	defer src.Close()
	if err := src.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOtherDatabase(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	cfg := d.config()
	cfg.Outboxes[0].Schema = "elsewhere"
	src := newSource(t, cfg)
	defer src.Close()
	if no := noStream(t, src); !strings.Contains(no.Error(), "elsewhere") {
		t.Errorf("the error does not name the database: %v", no)
	}
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.StartMongo(t, 1, nil).Database())
	src := newSource(t, d.config())
	defer src.Close()
	for subject, f := range diagnosed(t, src) {
		if f.Grade != store.GradeOK {
			t.Errorf("%s: %+v", subject, f)
		}
	}
}
