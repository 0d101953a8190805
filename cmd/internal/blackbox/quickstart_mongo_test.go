package blackbox

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// madeMongo matches the database in a quickstart's output.
var madeMongo = regexp.MustCompile(`Outbox:\s+database (sluicebox_quickstart_\w+) on`)

// tryMongo starts a quickstart on a server and waits until it has printed its database, which
// is dropped at the end of the test.
func tryMongo(t *testing.T, source string, flags ...string) *trial {
	t.Helper()
	q := try(t, source, flags...)
	q.waitFor("Receiver:")
	q.made = madeMongo.FindStringSubmatch(q.said())[1]
	t.Cleanup(func() {
		q.kill()
		if err := servers.DropMongo(source, q.made); err != nil {
			t.Errorf("dropping %s: %v", q.made, err)
		}
	})
	return q
}

func mongoHas(t *testing.T, source, database string) bool {
	t.Helper()
	names, err := servers.OpenMongo(t, source).Client().ListDatabaseNames(context.Background(), bson.M{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(names, database)
}

// A quickstart on a replica set streams, delivers everything once and in order even with
// failures, and leaves nothing behind. Nor does an interrupted one.
func TestMongoQuickstart(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	source := servers.Mongo(t)
	q := tryMongo(t, source, "--for", "2s", "--rate", "100", "--fail-rate", "0.2")
	if code := q.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if said := q.stdout.String(); !strings.Contains(said, "each once and in the commit order of its group") || strings.Contains(said, "polled the table") {
		t.Errorf("it says:\n%s", said)
	}
	if mongoHas(t, source, q.made) {
		t.Errorf("database %s is left", q.made)
	}
	q = tryMongo(t, source, "--for", "30s", "--rate", "50")
	_ = q.cmd.Process.Signal(syscall.SIGINT)
	if code := q.exitCode(); code != 1 || !strings.Contains(q.said(), "nothing is left behind") || mongoHas(t, source, q.made) {
		t.Errorf("exit code %d after a signal, want 1; database there: %v", code, mongoHas(t, source, q.made))
	}
	q = try(t, source, "--json", "--for", "500ms")
	if code := q.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	var o outcome
	if err := json.Unmarshal(q.stdout.Bytes(), &o); err != nil || o.Delivered != o.Committed || o.Committed == 0 || o.Duplicates > 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

// A kept quickstart can be continued with the printed command. The next quickstart lists the
// leftovers of a killed one, with the statement that removes them.
func TestMongoQuickstartKeptAndKilled(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	source := servers.Mongo(t)
	kept := tryMongo(t, source, "--keep", "--for", "500ms")
	if code := kept.exitCode(); code != 0 || !mongoHas(t, source, kept.made) || !strings.Contains(kept.stdout.String(), "mongosh ") {
		t.Errorf("exit code %d of one that is kept, want 0:\n%s", code, kept.stdout.String())
	}
	killed := tryMongo(t, source, "--for", "30s")
	killed.kill()
	within(t, testTimeout, func() string {
		next := try(t, source, "--json", "--for", "200ms")
		if code := next.exitCode(); code != 0 {
			t.Fatalf("exit code %d, want 0", code)
		}
		for _, name := range []string{kept.made, killed.made} {
			if !strings.Contains(next.said(), `db.getSiblingDB("`+name+`").dropDatabase();`) {
				return name + " is not named:\n" + next.said()
			}
		}
		return ""
	})
}
