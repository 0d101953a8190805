package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// deployed returns a script of deploy/mongo for a database.
func (s *mongoScene) deployed(name string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "mongo", name))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), `"shop"`, fmt.Sprintf("%q", s.db.Name()))
}

// as returns the scene's URL for another user of its database.
func (s *mongoScene) as(user, password string) string {
	s.t.Helper()
	u, err := url.Parse(s.database)
	if err != nil {
		s.t.Fatal(err)
	}
	u.User, u.RawQuery = url.UserPassword(user, password), strings.Replace(u.RawQuery, "authSource=admin", "authSource="+s.db.Name(), 1)
	return u.String()
}

// guarded is a scene on a server with authentication and the users of roles.js.
func guarded(t *testing.T, rest string, test func(s *mongoScene)) {
	t.Helper()
	chooseMongo(t)
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	s := mongoSceneIn(t, set.Database(), rest)
	mongosh(t, s.db, s.deployed("roles.js"), "canary")
	s.config = strings.Replace(s.config, fmt.Sprintf("%q", s.database), fmt.Sprintf("%q, stream-url: %q", s.as("relay", "canary"), s.as("relay_stream", "canary")), 1)
	test(s)
}

// The relay works with the users of the scripts. It creates its collections, streams, claims,
// settles, holds, spills, reloads, sweeps and prunes, and a second relay takes over from a
// frozen one.
func TestMongoLeastPrivilege(t *testing.T) {
	t.Parallel()
	const rest = "dispatch: {on-failed: block, max-retries: 1, backoff: {initial: 50ms}, global-buffer-size: 100}\ncheckpoint: {sweep-interval: 1s}\n"
	guarded(t, rest, func(s *mongoScene) {
		const bad = "E000100000050"
		poison(s.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, bad)
		r := s.run()
		if strings.Contains(r.said(), "polling") || strings.Contains(r.said(), "canary") {
			t.Errorf("the relay says:\n%s", r.said())
		}
		s.write(mongoLoad{Transactions: 1600, Clients: 8, Most: 1, Groups: 2})()
		within(s.t, testTimeout, func() string {
			if s.count(bson.M{"_id.queue": ""}, "sluicebox_queue") == 0 {
				return "nothing is spilled"
			}
			return ""
		})
		lane := []string{"--outbox", "outbox_events", "--kind", "EVENT", "--group", "group-2"}
		r.operate(append([]string{"lanes", "pause", "--reason", "to see whether it may"}, lane...)...)
		r.operate(append([]string{"lanes", "resume"}, lane...)...)
		s.to.Script(nil)
		r.operate("deadletters", "requeue", "--outbox", "outbox_events", "--yes", bad)
		s.expectSet()
		awaitZero(t, "documents are parked", func() int { return s.count(bson.M{"_id.queue": ""}, "sluicebox_queue") })
		_, err := s.db.Collection("outbox_events").UpdateByID(context.Background(), bad, bson.M{"$set": bson.M{"status": "PENDING"}})
		s.must(err)
		r.waitFor("sweep found PENDING rows")
		s.settle()

		next := start(t, s.config)
		next.waitFor("standing by")
		r.freeze()
		next.waitFor("source connected")
		s.load(50)
		s.expectSet()
		r.kill()
		expectStop(t, next)

		long := time.Now().Add(-48 * time.Hour)
		_, err = s.db.Collection("outbox_events").UpdateMany(context.Background(), bson.M{}, bson.M{"$set": bson.M{"processedAt": long}})
		s.must(err)
		s.config = strings.Replace(s.config, "flowcatalyst: {", "flowcatalyst: {retention: 1d, ", 1)
		r = s.run()
		awaitZero(t, "documents are kept for too long", func() int { return s.count(bson.M{}, "outbox_events") })
		expectStop(t, r)
	})
}

// A user of reader.js lists the dead letters, checkpoints and replays, and changes nothing.
func TestMongoReader(t *testing.T) {
	t.Parallel()
	guarded(t, "dispatch: {max-retries: 0}\n", func(s *mongoScene) {
		const bad = "E000100000005"
		poison(s.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, bad)
		r := s.run()
		s.write(mongoLoad{Transactions: 40, Clients: 1, Groups: 1})()
		r.waitFor("row marked FAILED")
		mongosh(t, s.db, s.deployed("reader.js"), "look")
		file := filepath.Join(t.TempDir(), "reader.yaml")
		text := strings.Replace(s.config, s.as("relay", "canary"), s.as("relay_reader", "look"), 1)
		s.must(os.WriteFile(file, []byte(strings.Replace(text, adminKey, "''", 1)), 0o600))
		stdout, stderr, code := command(t, nil, "deadletters", "list", "-c", file)
		if code != 0 || !strings.Contains(stdout, bad) {
			t.Errorf("deadletters list: exit code %d, want 0: %s%s", code, stdout, stderr)
		}
		for _, kind := range []string{"checkpoint", "replay"} {
			if stdout, stderr, code := command(t, nil, kind, "list", "-c", file); code != 0 {
				t.Errorf("%s list: exit code %d, want 0: %s%s", kind, code, stdout, stderr)
			}
		}
		if _, stderr, code = command(t, nil, "deadletters", "requeue", "-c", file, "--outbox", "outbox_events", "--yes", bad); code == 0 {
			t.Errorf("the reader may requeue, want it refused: %s", stderr)
		}
		expectStop(t, r)
	})
}

// mongoPrivilege is one action of a role in roles.js.
type mongoPrivilege struct {
	roleIn, role, action string
	resource             bson.M
}

// privileges lists all actions of the roles in roles.js, except those that create collections and those on
// the second outbox.
func (s *mongoScene) privileges() (list []mongoPrivilege) {
	s.t.Helper()
	roleIn, role := "", ""
	for line := range strings.Lines(s.deployed("roles.js")) {
		if m := regexp.MustCompile(`getSiblingDB\("(.*?)"\).createRole\({role: "(.*?)"`).FindStringSubmatch(line); m != nil {
			roleIn, role = m[1], m[2]
		}
		m := regexp.MustCompile(`{resource: {(?:db: "(.*?)", collection: "(.*?)"|cluster: true)}, actions: \[(.*?)\]`).FindStringSubmatch(line)
		if m == nil || role == "relay_make" || m[2] == "outbox_dispatch_jobs" { // as the other outbox
			continue
		}
		resource := bson.M{"db": m[1], "collection": m[2]}
		if m[1] == "" {
			resource = bson.M{"cluster": true}
		}
		for _, action := range regexp.MustCompile(`\w+`).FindAllString(m[3], -1) {
			list = append(list, mongoPrivilege{roleIn, role, action, resource})
		}
	}
	return list
}

// Without any one action of roles.js, doctor names it with the statement that grants it. With all of
// them it has no fault, and the relay works.
func TestMongoEachPrivilegeIsNamed(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	s := mongoSceneIn(t, set.Database(), "")
	mongosh(t, s.db, s.deployed("roles.js"), "canary")
	s.config = strings.Replace(s.config, fmt.Sprintf("%q", s.database), fmt.Sprintf("%q, stream-url: %q", s.as("relay", "canary"), s.as("relay_stream", "canary")), 1)
	s.config = strings.Replace(s.config, "flowcatalyst: {", "flowcatalyst: {retention: 1h, ", 1)
	file := configFile(t, s.config)
	if _, stderr, code := command(t, nil, "init", "-c", file); code != 0 {
		t.Fatalf("init: %s", stderr)
	}
	all := s.privileges()
	if len(all) < 20 {
		t.Fatalf("roles.js has %d actions", len(all))
	}
	for _, p := range all {
		change := func(command string) {
			set.Run(p.roleIn, bson.D{{Key: command, Value: p.role}, {Key: "privileges", Value: bson.A{bson.M{"resource": p.resource, "actions": bson.A{p.action}}}}})
		}
		change("revokePrivilegesFromRole")
		d := diagnose(t, s.config)
		said := d.complaints()
		grants := regexp.MustCompile(`createRole\(|grantPrivilegesToRole\(|grantRolesToUser\(`).MatchString(said)
		if named := p.role == "relay_stream" || strings.Contains(said, p.action); !grants || !named { // the stream's grants are roles of the server
			t.Errorf("%s without %s on %v: doctor names no statement: %s", p.role, p.action, p.resource, said)
		}
		change("grantPrivilegesToRole")
	}
	if d, text, code := doctor(t, s.config); code != 0 || d.complaints() != "" {
		t.Errorf("with all privileges: exit code %d, want 0:\n%s", code, text)
	}
	r := s.run()
	s.load(10)
	s.expectSet()
	expectStop(t, r)
}
