package blackbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// benchMeasure and benchResult are the parts of the --json output that the tests check.
type benchMeasure struct {
	Name         string    `json:"name"`
	Turns        []float64 `json:"turns"`
	Median       float64   `json:"median"`
	Against      string    `json:"against"`
	AgainstTurns []float64 `json:"against_turns"`
	Ratio        float64   `json:"ratio"`
}

type benchResult struct {
	Scenario string `json:"scenario"`
	Machine  struct {
		Server   string            `json:"server"`
		Settings map[string]string `json:"server_settings"`
	} `json:"machine"`
	Measures []benchMeasure `json:"measures"`
}

// measuring is a `sluicebox bench` process with a temporary folder of its own.
type measuring struct {
	cmd            *exec.Cmd
	tmp            string
	stdout, stderr bytes.Buffer
}

func newMeasuring(t *testing.T, source string, flags ...string) *measuring {
	t.Helper()
	m := &measuring{tmp: t.TempDir()}
	m.cmd = exec.CommandContext(t.Context(), binary, append([]string{"bench", "--source", source}, flags...)...)
	m.cmd.Env = append(environment(), "TMPDIR="+m.tmp)
	m.cmd.Stdout, m.cmd.Stderr = &m.stdout, &m.stderr
	m.cmd.Cancel = func() error { return m.cmd.Process.Signal(syscall.SIGTERM) }
	return m
}

// TestBench: each scenario reports its measures of the relay and of the comparison, and
// leaves nothing behind, even if a signal ends it. The first two run beside all programs.
func TestBench(t *testing.T) {
	t.Parallel()
	version := servers.Versions()[0]
	source := servers.Database(t, version)
	t.Run("interrupted", func(t *testing.T) { interruptBench(t, source) })
	t.Run("scenarios", func(t *testing.T) {
		for _, tc := range []struct {
			flags    string
			against  string
			measures []string // must be present and above zero
		}{
			{"latency --rate 100 --duration 500ms", "floor", []string{"p50", "p99", "CPU per row"}},
			{"drain --rows 2000 --groups 50", "floor", []string{"drain", "CPU per row"}},
			{"ungrouped --rows 2000 --against floor", "floor", []string{"drain", "CPU per row, with the server"}},
			{"peer --rows 2000 --groups 50 --rate 100 --duration 500ms --peer " + peerProgram(t), "peer", []string{"p50", "drain", "memory at its peak"}},
			{"bulk-transaction --rows 5000 --duration 3s", "without", []string{"longest"}},
			{"replay --rows 20000 --rate 100 --duration 500ms", "alone", []string{"p99"}},
			{"drain --rows 2000 --ungrouped --layout outbox-messages --claims off --against floor", "floor", []string{"drain"}},
			{"slow-receiver --rows 500 --groups 50 --senders 8", "", []string{"drain", "share of what the service time allows"}},
			{"blocked-group --rows 2000 --rate 100 --duration 500ms", "without", []string{"p50"}},
			{"idle --duration 500ms", "", []string{"memory at its peak"}},
			{"big-table --rows 2000 --rate 100 --duration 500ms", "empty table", []string{"p50", "drain"}},
		} {
			t.Run(tc.flags, func(t *testing.T) {
				t.Parallel()
				profiles := filepath.Join(t.TempDir(), "profiles")
				flags := append([]string{"--scenario"}, strings.Fields(tc.flags)...)
				m := newMeasuring(t, source, append(flags, "--repeat", "1", "--json", "--profile", profiles)...)
				res := m.result(t)
				if res.Scenario != flags[1] || res.Machine.Settings["fsync"] != "on" || !strings.HasPrefix(res.Machine.Server, "PostgreSQL ") {
					t.Errorf("the result says %+v", res)
				}
				for _, name := range tc.measures {
					res.expect(t, name, tc.against)
				}
				if files, err := os.ReadDir(m.tmp); err != nil || len(files) > 0 {
					t.Errorf("left in the folder for temporary files: %v, %v", files, err)
				}
			})
		}
	})
	t.Run("compare", func(t *testing.T) { compareClaims(t, source) })
	conn := servers.Connect(t, source)
	within(t, testTimeout, func() string { // those of other benchmarks come and go
		var left string
		err := conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(name, ' '), '') FROM (
			SELECT datname AS name FROM pg_database UNION ALL SELECT slot_name FROM pg_replication_slots) every WHERE name LIKE 'sluicebox_bench_%'`).Scan(&left)
		if err != nil || left != "" {
			return fmt.Sprintf("left on the server: %s, %v", left, err)
		}
		return ""
	})
}

// peerProgram returns a program that works as a peer must: it reads its configuration, says that it
// reads the log, and may print more.
func peerProgram(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "peer")
	script := "#!/bin/sh\necho starting\nexec '" + binary + "' bench-floor\n"
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// compareClaims compares two configurations, in place of the relay and the floor.
func compareClaims(t *testing.T, source string) {
	var files []string
	for _, claims := range []string{"on", "off"} {
		file := filepath.Join(t.TempDir(), claims+".yaml")
		if err := os.WriteFile(file, []byte("dispatch: {claims: "+claims+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	m := newMeasuring(t, source, "--scenario", "drain", "--rows", "5000", "--groups", "50", "--repeat", "1", "--json", "--compare", files[0], files[1])
	res := m.result(t)
	for _, name := range []string{"drain", "CPU per row", "memory at its peak"} {
		res.expect(t, name, "A")
	}
}

// result waits for the end of the benchmark and parses its result.
func (m *measuring) result(t *testing.T) (res benchResult) {
	t.Helper()
	err := m.cmd.Run()
	if err != nil && strings.Contains(m.stderr.String(), "arrived twice, 0 before an earlier row of their group, and 0 were never written") {
		t.Logf("measured once more, because a relay that lost its lease on a busy machine sends rows again: %s", m.stderr.String())
		again := exec.CommandContext(t.Context(), m.cmd.Path, m.cmd.Args[1:]...)
		m.stdout.Reset()
		again.Env, again.Stdout, again.Stderr = m.cmd.Env, &m.stdout, &m.stderr
		err = again.Run()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, m.stderr.String())
	}
	if err := json.Unmarshal(m.stdout.Bytes(), &res); err != nil {
		t.Fatalf("%v: %s", err, m.stdout.String())
	}
	return res
}

// TestBenchOnTheBinlog is TestBench for MySQL and MariaDB, where the source URL may omit the
// database. The first scenario runs on both, the others on one of them.
func TestBenchOnTheBinlog(t *testing.T) {
	t.Parallel()
	for i, tc := range []struct {
		flags    string
		against  string
		measures []string
	}{
		{"latency --rate 50 --duration 500ms --against floor", "floor", []string{"p50", "CPU per row"}},
		{"drain --rows 2000 --groups 50 --against floor", "floor", []string{"drain"}},
		{"drain --rows 2000 --ungrouped --layout outbox-messages --claims off --against floor", "floor", []string{"drain"}},
		{"blocked-group --rows 2000 --rate 50 --duration 500ms", "without", []string{"p50"}},
		{"idle --duration 500ms", "", []string{"memory at its peak"}},
		{"big-table --rows 2000 --rate 50 --duration 500ms", "empty table", []string{"p50", "drain"}},
	} {
		t.Run(tc.flags, func(t *testing.T) {
			flavours := servers.Spread(t, servers.Flavours())
			if i == 0 {
				flavours = servers.Chosen(servers.Flavours())
			}
			for _, f := range flavours {
				m := newMeasuring(t, f.Shared(t), append(append([]string{"--scenario"}, strings.Fields(tc.flags)...), "--repeat", "1", "--json")...)
				res := m.result(t)
				if res.Machine.Settings["sync_binlog"] != "1" || !strings.HasPrefix(res.Machine.Server, string(f)+" ") {
					t.Errorf("the result says %+v", res)
				}
				for _, name := range tc.measures {
					res.expect(t, name, tc.against)
				}
			}
		})
	}
	for _, f := range servers.Chosen(servers.Flavours()) {
		var left int
		err := servers.OpenMySQL(t, f.Shared(t)).QueryRowContext(t.Context(),
			"SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'sluicebox\\_bench\\_%'").Scan(&left)
		if err != nil || left > 0 {
			t.Errorf("%d databases are left on %s, want 0, %v", left, f, err)
		}
	}
}

// expect expects a measure of one round of both sides.
func (r *benchResult) expect(t *testing.T, name, against string) {
	t.Helper()
	i := slices.IndexFunc(r.Measures, func(m benchMeasure) bool { return m.Name == name })
	if i < 0 {
		t.Errorf("there is no measure %q: %+v", name, r.Measures)
		return
	}
	m := r.Measures[i]
	soon := name == "p50" || name == "p99" // may be zero for few rows: a row may arrive before its writer's COMMIT returns
	if m.Against != against || len(m.Turns) != 1 || m.Median <= 0 && !soon || against != "" && (len(m.AgainstTurns) != 1 || m.Ratio <= 0 && !soon) {
		t.Errorf("measure %q is %+v", name, m)
	}
}

// interruptBench sends SIGINT to a benchmark while its relay streams.
func interruptBench(t *testing.T, source string) {
	m := newMeasuring(t, source, "--duration", "1h")
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn := servers.Connect(t, source)
	within(t, testTimeout, func() (wrong string) {
		logs, _ := filepath.Glob(filepath.Join(m.tmp, "*", "sluicebox_bench_*.log")) // named like the slot: other benchmarks may run
		if len(logs) == 0 {
			return "no relay runs"
		}
		slot := strings.TrimSuffix(filepath.Base(logs[0]), ".log")
		err := conn.QueryRow(t.Context(), "SELECT coalesce((SELECT '' FROM pg_replication_slots WHERE slot_name = $1 AND active), 'the relay does not stream')", slot).Scan(&wrong)
		if err != nil {
			t.Fatal(err)
		}
		return wrong
	})
	if err := m.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := m.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(m.stderr.String(), "interrupted") {
		t.Errorf("it ended with %v and output %s", err, m.stderr.String())
	}
}
