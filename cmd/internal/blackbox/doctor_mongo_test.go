package blackbox

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ownMongo returns the relay's collections.
func ownMongo() []string {
	return []string{"sluicebox_meta", "sluicebox_leader", "sluicebox_lease", "sluicebox_record", "sluicebox_queue", "sluicebox_marker"}
}

// Doctor reports each fault with the statement that fixes it, and reports no fault once its
// statements were run.
func TestMongoDoctor(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	s := mongoSceneIn(t, set.Database(), "")
	mongosh(t, s.db, s.deployed("roles.js"), "canary")
	as := func(user string) string { return strings.Replace(s.config, s.database, s.as(user, "canary"), 1) }
	both := strings.Replace(as("relay"), "source: {", "source: {stream-url: \""+s.as("relay_stream", "canary")+"\", ", 1)
	if _, stderr, code := command(t, nil, "init", "-c", configFile(t, both)); code != 0 {
		t.Fatalf("init: %s", stderr)
	}
	if d, text, code := doctor(t, both); code != 0 || d.Faults+d.Unreachable > 0 || strings.Contains(text, "canary") {
		t.Fatalf("exit code %d of a relay without faults, want 0:\n%s", code, text)
	}
	revoke := func(role, collection string, actions ...string) {
		set.Run(s.db.Name(), bson.D{{Key: "revokePrivilegesFromRole", Value: role}, {Key: "privileges", Value: bson.A{
			bson.M{"resource": bson.M{"db": s.db.Name(), "collection": collection}, "actions": actions},
		}}})
	}
	for _, ill := range []struct {
		name, config string
		cause        func()
		want         []string
		harmless     bool
	}{
		{"own collections dropped", both, func() {
			for _, name := range ownMongo() {
				s.must(s.db.Collection(name).Drop(t.Context()))
			}
		}, []string{"relay collections do not exist"}, true},
		{"no stream", as("relay"), func() {}, []string{"may not read the change stream"}, false},
		{"no update of the outbox", both, func() { revoke("relay_work", "outbox_events", "update") }, []string{"lacks update on"}, false},
		{"no right on the lease", both, func() {
			set.Run("admin", bson.D{{Key: "dropRole", Value: "sluicebox_" + nameFor(s.database)}}) // created by the fix
			revoke("relay_work", "sluicebox_lease", "insert")
		}, []string{"lacks insert on"}, false},
		{"no index of the state", both, func() {
			s.must(s.db.Collection("outbox_events").Indexes().DropAll(t.Context()))
		}, []string{"index"}, true},
	} {
		t.Run(ill.name, func(t *testing.T) {
			ill.cause()
			d, text, code := doctor(t, ill.config)
			if want := map[bool]int{false: 78, true: 0}[ill.harmless]; code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			for _, want := range ill.want {
				if !strings.Contains(d.complaints(), want) {
					t.Errorf("doctor output lacks %q:\n%s", want, text)
				}
			}
			s.applyFixes(t, ill.config, d)
		})
	}
}

// applyFixes runs the statements that doctor prints, and no others, until it reports no fault.
func (s *mongoScene) applyFixes(t *testing.T, config string, d diagnosis) {
	t.Helper()
	const most = 4 // a fix may let doctor see more
	for range most {
		said := d.complaints()
		if said == "" {
			return
		}
		if strings.Contains(said, "run `sluicebox init`") {
			if _, stderr, code := command(t, nil, "init", "-c", configFile(t, config)); code != 0 {
				t.Fatalf("init: %s", stderr)
			}
		} else if len(d.statements()) == 0 {
			t.Fatalf("doctor prints no statement to run:\n%s", said)
		}
		for _, statement := range slices.Compact(slices.Sorted(slices.Values(d.statements()))) { // createRole before grant
			mongosh(t, s.db, statement, "canary")
		}
		d = diagnose(t, config)
	}
	if said := d.complaints(); said != "" {
		t.Fatalf("doctor still reports faults after its fixes were run:\n%s", said)
	}
}

// `sluicebox init --print` prints exactly the objects that init creates.
func TestMongoInitPrint(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		file := configFile(t, s.config)
		script, stderr, code := command(t, nil, "init", "--print", "-c", file)
		if code != 0 {
			t.Fatal(stderr)
		}
		mongosh(t, s.db, script, "")
		d, text, code := doctor(t, s.config)
		if code != 0 || strings.Contains(d.complaints(), "relay collections") {
			t.Errorf("exit code %d after what init printed, want 0:\n%s", code, text)
		}
	})
}

// Without a replica set the relay polls and logs the reason. After the server has become a
// replica set the relay streams, without a restart.
func TestMongoWithoutASet(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	set := servers.StandaloneMongo(t, nil)
	s := mongoSceneIn(t, set.Database(), "")
	s.auto()
	s.config = strings.Replace(s.config, "source: {", "source: {poll-interval: 50ms, ", 1)
	d, text, _ := doctor(t, s.config)
	if said := d.complaints(); !strings.Contains(said, "replica set") || !strings.Contains(said, "rs.initiate()") {
		t.Errorf("doctor does not name the missing replica set:\n%s", text)
	}
	r := s.run()
	if said := r.said(); !strings.Contains(said, "log unreadable; polling") || !strings.Contains(said, "rs.initiate()") {
		t.Errorf("the log lacks the reason for polling:\n%s", said)
	}
	s.backlog(100)
	arrive(t, s.to, 100-s.count(bson.M{"status": "COMPLETED", "processedAt": nil}, "outbox_events"))
	awaitZero(t, "documents are not COMPLETED", func() int { // else the server's shutdown may lose outcomes
		return s.count(bson.M{"status": bson.M{"$ne": "COMPLETED"}}, "outbox_events")
	})
	set.ConvertToReplicaSet()
	expectMode(t, r, "stream")
	s.load(50)
	arrive(t, s.to, s.rows()-s.count(bson.M{"status": "COMPLETED", "processedAt": nil}, "outbox_events"))
	if c := s.to.Counts(); c.Duplicates > 0 {
		t.Errorf("%d documents arrived more than once, want 0", c.Duplicates)
	}
	expectStop(t, r)
}

// tap prints commits in order beside a relay and changes nothing. status, lanes and
// deadletters work.
func TestMongoCommands(t *testing.T) {
	t.Parallel()
	aMongo(t, "dispatch: {max-retries: 0}\n", func(s *mongoScene) {
		const bad = "E000100000005"
		poison(s.to, sinktest.Answer{Status: 400, Body: []byte("no such thing")}, bad)
		r := s.run()
		tap := startTap(t, s.config, "--json", "--payload")
		s.write(mongoLoad{Transactions: 40, Clients: 1, Groups: 1})()
		tap.awaitLines(s.rows())
		last := map[string]int{}
		for _, row := range tap.rows() {
			if w := writtenIn(t, []byte(*row.Payload)); w.N != last[row.Kind]+1 {
				t.Errorf("%s: number %d after %d", row.ID, w.N, last[row.Kind])
			} else {
				last[row.Kind] = w.N
			}
		}
		r.waitFor("row marked FAILED")
		for _, args := range []string{"status", "lanes list"} {
			r.operate(strings.Fields(args)...)
		}
		stdout, stderr, code := command(t, nil, "deadletters", "list", "-c", configFile(t, s.config))
		if code != 0 || !strings.Contains(stdout, bad) {
			t.Errorf("deadletters list by the database: exit code %d, want 0: %s%s", code, stdout, stderr)
		}
		s.to.Script(nil)
		r.operate("deadletters", "requeue", "--outbox", "outbox_events", "--yes", bad)
		s.expectSet()
		expectStop(t, r)
	})
}
