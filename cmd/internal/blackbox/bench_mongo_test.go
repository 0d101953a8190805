package blackbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestMongoBench is TestBench for MongoDB, where the source URL may omit the database.
func TestMongoBench(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	source := servers.SharedMongo(t)
	for _, tc := range []struct {
		flags    string
		against  string
		measures []string
	}{
		{"latency --rate 50 --duration 500ms --against floor", "floor", []string{"p50", "CPU per row"}},
		{"drain --rows 2000 --groups 50 --against floor", "floor", []string{"drain"}},
		{"drain --rows 2000 --ungrouped --layout outbox-messages --claims off --against floor", "floor", []string{"drain"}},
		{"slow-receiver --rows 500 --groups 50 --senders 8", "", []string{"drain", "share of what the service time allows"}},
		{"blocked-group --rows 2000 --rate 50 --duration 500ms", "without", []string{"p50"}},
		{"idle --duration 1500ms", "", []string{"memory at its peak"}},
		{"big-table --rows 2000 --rate 50 --duration 500ms", "empty table", []string{"p50", "drain"}},
	} {
		t.Run(tc.flags, func(t *testing.T) {
			profiles := t.TempDir()
			flags := append([]string{"--scenario"}, strings.Fields(tc.flags)...)
			m := newMeasuring(t, source, append(flags, "--repeat", "1", "--json", "--profile", profiles)...)
			res := m.result(t)
			if res.Machine.Settings["writeConcernMajorityJournalDefault"] != "true" || !strings.HasPrefix(res.Machine.Server, "MongoDB ") {
				t.Errorf("the result says %+v", res)
			}
			for _, name := range tc.measures {
				res.expect(t, name, tc.against)
			}
			m.expectCounted(t, profiles)
		})
	}
	left, err := servers.OpenMongo(t, source).Client().ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: "^sluicebox_bench_"}}}})
	if err != nil || len(left) > 0 {
		t.Errorf("left on the server: %q, %v", left, err)
	}
}

// expectCounted expects the server's counters from the relay's profile.
func (m *measuring) expectCounted(t *testing.T, profiles string) {
	t.Helper()
	if strings.Contains(m.stderr.String(), "not counted") {
		t.Errorf("it said %s", m.stderr.String())
	}
	files, err := filepath.Glob(filepath.Join(profiles, "*-relay-statements.txt"))
	if err != nil || len(files) > 1 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files { // big-table profiles the relay twice; the last profile is kept
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "reports no time per kind of statement") || !strings.Contains(string(text), "metrics.commands.getMore.total") {
			t.Errorf("%s: %v\n%s", file, err, text)
		}
	}
}

// TestMongoBenchInASetOfThree: the URL may name several hosts, and the result lists them.
func TestMongoBenchInASetOfThree(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	m := newMeasuring(t, servers.StartMongo(t, 3, nil).Database(), "--rate", "50", "--duration", "500ms", "--repeat", "1", "--json", "--against", "floor")
	res := m.result(t)
	res.expect(t, "p50", "floor")
	if members := res.Machine.Settings["members"]; members != "3" {
		t.Errorf("the set has %q members", members)
	}
}

// TestMongoBenchWithoutASet: a server without change streams is refused with the remedy.
func TestMongoBenchWithoutASet(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	m := newMeasuring(t, servers.StandaloneMongo(t, nil).Database(), "--repeat", "1")
	var exit *exec.ExitError
	if err := m.cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 78 || !strings.Contains(m.stderr.String(), "rs.initiate()") {
		t.Errorf("it ended with %v and output %s", err, m.stderr.String())
	}
}
