package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// eachDatabase runs a test on an SQLite file (source is ""), on one or all versions of
// PostgreSQL, and on MySQL and MariaDB, in parallel.
func eachDatabase(t *testing.T, test func(t *testing.T, source string)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, "")
	})
	aVersion(t, func(t *testing.T, version int) { test(t, servers.Database(t, version)) })
	aFlavour(t, func(t *testing.T, f servers.Flavour) { test(t, f.Database(t)) })
}

// trial is a `sluicebox quickstart` process with its own directory for temporary folders.
type trial struct {
	*relay
	tmp    string
	made   string       // its database on a MySQL or MariaDB server, or ""
	stdout bytes.Buffer // complete once the process has ended
}

// try starts a quickstart. It is killed at the end of the test if it still runs.
func try(t *testing.T, source string, flags ...string) *trial {
	t.Helper()
	q := &trial{tmp: t.TempDir(), relay: &relay{t: t, ended: make(chan struct{}), grown: make(chan struct{})}}
	q.cmd = exec.Command(binary, quickstartArgs(source, flags)...)
	q.cmd.Env = append(environment(), "TMPDIR="+q.tmp)
	q.cmd.Stdout = &q.stdout
	pipe, err := q.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := q.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go q.watch(pipe)
	t.Cleanup(func() {
		q.kill()
		if t.Failed() {
			t.Logf("the quickstart said:\n%s%s", q.said(), q.stdout.String())
		}
	})
	if ofMySQL(source) {
		q.made = q.awaitMade(source)
	}
	return q
}

func quickstartArgs(source string, flags []string) []string {
	args := append([]string{"quickstart"}, flags...)
	if source != "" {
		args = append(args, "--source", source)
	}
	return args
}

// has lists the objects in a database of the kinds that a quickstart creates. For a file the
// list is empty.
func has(t *testing.T, source string) []string {
	t.Helper()
	switch {
	case source == "":
		return nil
	case ofMySQL(source):
		return tablesOf(t, source)
	}
	rows, err := servers.Connect(t, source).Query(context.Background(), `
SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_toast\_temp%' AND nspname NOT LIKE 'pg\_temp%'
UNION ALL SELECT 'publication ' || pubname FROM pg_publication
UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()
ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// expectNothingLeft compares a database and a folder with their states before a quickstart.
func (q *trial) expectNothingLeft(t *testing.T, source string, before []string) {
	t.Helper()
	if after := has(t, source); !slices.Equal(after, before) {
		t.Errorf("the database had %q and has %q", before, after)
	}
	if q.made != "" && databaseIsThere(t, source, q.made) {
		t.Errorf("database %s is left", q.made)
	}
	files, err := os.ReadDir(q.tmp)
	if err != nil || len(files) > 0 {
		t.Errorf("left in the folder for temporary folders: %v, %v", files, err)
	}
}

// outcome is the result that --json prints.
type outcome struct {
	Committed  int     `json:"committed"`
	Delivered  int     `json:"delivered"`
	Duplicates int     `json:"duplicates"`
	OutOfOrder int     `json:"out_of_order"`
	Failed     int     `json:"failed"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	RowsPerS   float64 `json:"rows_per_s"`
}

func TestQuickstart(t *testing.T) {
	t.Parallel()
	for _, share := range []string{"0", "0.2"} {
		t.Run("fail-rate "+share, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, source string) {
				before := has(t, source)
				q := try(t, source, "--json", "--for", "2s", "--fail-rate", share)
				if code := q.exitCode(); code != 0 || withoutNotes(q.said()) != "" {
					t.Fatalf("exit code %d, want 0", code)
				}
				var got outcome
				d := json.NewDecoder(&q.stdout)
				d.DisallowUnknownFields()
				if err := d.Decode(&got); err != nil || d.More() {
					t.Fatalf("output is not one JSON object: %v", err)
				}
				t.Logf("%+v", got)
				// 601 rows, or fewer on a busy machine with the race detector.
				if got.Committed < 20 || got.Committed > 601 || got.Delivered != got.Committed || got.Duplicates+got.OutOfOrder+got.Failed > 0 {
					t.Errorf("got %+v", got)
				}
				if got.P50 <= 0 || got.P99 < got.P50 || got.RowsPerS <= 0 || got.RowsPerS > 300 {
					t.Errorf("latencies and rate are %+v, want positive values", got)
				}
				q.expectNothingLeft(t, source, before)
			})
		})
	}
}

// A quickstart prints its setup, its progress, its result and the next steps.
func TestQuickstartTextOutput(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, source string) {
		q := try(t, source, "--for", "2500ms", "--rate", "100", "--groups", "5", "--fail-rate", "0.3")
		if code := q.exitCode(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		for _, text := range []string{"100 orders a second in 5 message groups, for 2.5s; writers: 2", " committed  ", " in flight  p50 "} {
			if !strings.Contains(q.said(), text) {
				t.Errorf("progress lacks %q", text)
			}
		}
		if strings.ContainsAny(q.said(), "\r\x1b") {
			t.Error("control characters without a terminal")
		}
		for _, text := range []string{"rows were delivered, each once", "requests failed on purpose", " COMPLETED\n", binary + " run -c sluicebox.yaml"} {
			if !strings.Contains(q.stdout.String(), text) {
				t.Errorf("summary lacks %q", text)
			}
		}
	})
}

// A signal at any time leaves nothing behind, and keeps all that existed before.
func TestQuickstartInterrupted(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, source string) {
		for _, moment := range []struct {
			said   string
			signal syscall.Signal
		}{{"Load:", syscall.SIGINT}, {" committed ", syscall.SIGTERM}, {" committed ", syscall.SIGINT}} {
			before := has(t, source)
			q := try(t, source, "--for", "10m", "--fail-rate", "0.2")
			q.waitFor(moment.said)
			_ = q.cmd.Process.Signal(moment.signal)
			if code := q.exitCode(); code != 1 || q.stdout.Len() > 0 || !strings.Contains(q.said(), "interrupted") {
				t.Errorf("exit code %d after %s behind %q, want 1", code, moment.signal, moment.said)
			}
			q.expectNothingLeft(t, source, before)
		}
	})
}

// The existing tables of another relay stay unchanged.
func TestQuickstartBesideARelay(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		r := s.run()
		before := has(s.t, s.database)
		q := try(s.t, s.database, "--for", "1s")
		write(s.t, s.database, load{transactions: 160, clients: 8, scripts: seedScripts(10)})()
		if code := q.exitCode(); code != 0 {
			s.t.Errorf("exit code %d, want 0", code)
		}
		q.expectNothingLeft(s.t, s.database, before)
		if n := count(s.t, s.conn, "SELECT (SELECT count(*) FROM sluicebox.leader) * 10 + (SELECT count(*) FROM "+s.kind.checkpoint+")"); n != 11 {
			s.t.Errorf("the relay tables have %d leaders and %d checkpoints, want 1 each", n/10, n%10)
		}
		s.expectOnce()
		expectStop(s.t, r)
	})
}

// killed is a quickstart that was killed under load, with its configuration.
func killed(t *testing.T, source string) (q *trial, file string) {
	t.Helper()
	q = try(t, source, "--keep", "--for", "10m", "--fail-rate", "0.9", "--groups", "20", "--rate", "3000")
	q.waitFor(" committed ")
	files, err := filepath.Glob(filepath.Join(q.tmp, "*", "sluicebox.yaml"))
	if err != nil || len(files) != 1 {
		t.Fatalf("configurations %v, %v, want one", files, err)
	}
	within(t, testTimeout, func() string { // the first line may say that all of one row is delivered
		if open := len(rest(t, source, files[0])); open < 100 {
			return fmt.Sprintf("%d rows are open, want 100", open)
		}
		return ""
	})
	q.kill()
	awaitSessionsEnd(t, source, files[0])
	return q, files[0]
}

// awaitSessionsEnd waits until the server has ended the sessions of a killed quickstart,
// because until then they may still commit.
func awaitSessionsEnd(t *testing.T, source, file string) {
	t.Helper()
	var sessions func() int
	name := keptName(t, file)
	switch {
	case ofMySQL(source):
		db := servers.OpenMySQL(t, source)
		sessions = func() int {
			return rigs.QueryValue[int](t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = ?", name)
		}
	case source != "":
		conn := servers.Connect(t, source)
		sessions = func() (n int) {
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%' || $1 || '%'", name).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	default:
		return // a file has no server
	}
	within(t, testTimeout, func() string {
		if n := sessions(); n > 0 {
			return fmt.Sprintf("%d sessions of the killed quickstart go on", n)
		}
		return ""
	})
}

// event is a row's payload.
type event struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Number   int    `json:"number"`
}

// `run` with the file of a killed quickstart delivers its undelivered rows in order.
func TestQuickstartKilled(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, source string) {
		_, file := killed(t, source)
		to := sinktest.NewReceiver(t)
		open := rest(t, source, file)
		if len(open) == 0 {
			t.Fatal("the quickstart had delivered everything when it was killed")
		}
		r := runFile(t, file, to.URL())
		arrive(t, to, len(open))
		within(t, testTimeout, func() string {
			if left := rest(t, source, file); len(left) > 0 {
				return fmt.Sprintf("%d rows are not COMPLETED", len(left))
			}
			return ""
		})
		expectStop(t, r)
		last := map[string]int{} // starts before the group's first open row
		for _, e := range open {
			if n, known := last[e.Customer]; !known || e.Number <= n {
				last[e.Customer] = e.Number - 1
			}
		}
		for _, got := range to.Accepted() {
			var e event
			if err := json.Unmarshal(got.Payload, &e); err != nil {
				t.Fatal(err)
			}
			if _, known := open[e.ID]; !known {
				t.Errorf("row %s had been delivered", e.ID)
			}
			if e.Number != last[e.Customer]+1 {
				t.Errorf("%s: row %d arrived after row %d", e.Customer, e.Number, last[e.Customer])
			}
			last[e.Customer] = e.Number
		}
		if c := to.Counts(); c.Distinct != len(open) || c.Duplicates > 0 {
			t.Errorf("%d rows were open, and %+v arrived", len(open), c)
		}
	})
}

// runFile starts `sluicebox run` on a file, with another receiver.
func runFile(t *testing.T, file, receiver string) *relay {
	t.Helper()
	return launch(t, file, "", "SLUICEBOX_FLOWCATALYST_API_BASE_URL="+receiver)
}

// A quickstart lists the leftovers of a killed one in the database, with the statements that
// remove them.
func TestQuickstartAfterAKilledOne(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		source := servers.Database(t, version)
		clean := has(t, source)
		q, _ := killed(t, source)
		dead := has(t, source)
		if len(dead) <= len(clean) {
			t.Fatalf("the killed quickstart has left nothing: %q", dead)
		}
		within(t, testTimeout, func() string {
			n := count(t, connect(t, source), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluicebox %'")
			if n > 0 {
				return fmt.Sprintf("%d sessions of the killed quickstart are left", n)
			}
			return ""
		})
		next := try(t, source, "--json", "--for", "500ms")
		if code := next.exitCode(); code != 0 || !strings.Contains(next.said(), "An earlier quickstart was kept, or killed") {
			t.Errorf("exit code %d, want 0", code)
		}
		next.expectNothingLeft(t, source, dead)
		for line := range strings.Lines(next.said()) {
			if statement, ok := strings.CutPrefix(line, "  "); ok {
				servers.Exec(t, source, statement)
			}
		}
		// The killed quickstart created the relay's tables, which other relays may use by now.
		servers.Exec(t, source, "DROP SCHEMA sluicebox CASCADE")
		if err := os.RemoveAll(q.tmp); err != nil {
			t.Fatal(err)
		}
		if after := has(t, source); !slices.Equal(after, clean) {
			t.Errorf("the database had %q and has %q", clean, after)
		}
	})
}

// Kept objects exist, and the printed commands work.
func TestQuickstartKeeps(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, source string) {
		before := has(t, source)
		// Either scheme works with either server; it selects the printed client.
		source = strings.Replace(source, "mysql://", "mariadb://", 1)
		q := try(t, source, "--keep", "--for", "1s", "--rate", "50")
		if code := q.exitCode(); code != 0 {
			t.Fatalf("exit code %d, want 0", code)
		}
		file, err := filepath.Glob(filepath.Join(q.tmp, "*", "sluicebox.yaml"))
		if err != nil || len(file) != 1 || !strings.Contains(q.stdout.String(), "Configuration: "+file[0]+"\n") {
			t.Fatalf("kept %v, %v", file, err)
		}
		if _, stderr, code := command(t, nil, "config", "check", "-c", file[0]); code != 0 {
			t.Errorf("its configuration: %s", stderr)
		}
		if left := rest(t, source, file[0]); len(left) > 0 {
			t.Errorf("%d rows are not COMPLETED", len(left))
		}
		_, commands, _ := strings.Cut(q.stdout.String(), "Look at the table:\n")
		look, remove, _ := strings.Cut(commands, "Continue.")
		_, remove, _ = strings.Cut(remove, "Remove it:\n")
		remove, _, _ = strings.Cut(remove, "\nThe schema sluicebox stays")
		if client := strings.Fields(look)[0]; clientIsThere(t, client) {
			if out := shell(t, look); !strings.Contains(out, "COMPLETED") || strings.Contains(out, "PENDING") {
				t.Errorf("%s printed %s", look, out)
			}
		}
		if client := strings.Fields(remove)[0]; clientIsThere(t, client) {
			shell(t, remove)
			if source != "" && !ofMySQL(source) {
				servers.Exec(t, source, "DROP SCHEMA sluicebox CASCADE")
			}
			q.expectNothingLeft(t, source, before)
		}
	})
}

// shellEnvironment puts the test servers' client program into the PATH.
func shellEnvironment(t *testing.T, client string) []string {
	t.Helper()
	program, env := "", []string(nil)
	if client == "mariadb" {
		cmd := servers.ClientMySQL(t, servers.MariaDB.Shared(t))
		program, env = cmd.Path, cmd.Env
	} else {
		program, env = servers.Pgbench(t)
	}
	return append(env, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), "PSQLRC=/dev/null")
}

func clientIsThere(t *testing.T, name string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "command -v "+name)
	cmd.Env = shellEnvironment(t, name)
	if cmd.Run() != nil {
		t.Logf("%s is not there to try the commands with", name)
		return false
	}
	return true
}

// shell runs commands as printed; the first word is a client program.
func shell(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", script)
	cmd.Env = shellEnvironment(t, strings.Fields(script)[0])
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s%s", err, script, out)
	}
	return string(out)
}

// A role that may not read the log polls instead. A role that may not create a schema gets the
// GRANT.
func TestQuickstartWithFewRights(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		source, conn := prepare(t, postgresHost(version), seedTables)
		before := has(t, source)
		who := role(t, source)
		q := try(t, roleURL(source, who), "--for", "500ms", "--rate", "50")
		if code := q.exitCode(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		for _, text := range []string{"may not read the database's log", "log unreadable; polling", "REPLICATION", "each once"} {
			if !strings.Contains(q.stdout.String(), text) {
				t.Errorf("summary lacks %q", text)
			}
		}
		q.expectNothingLeft(t, source, before)

		if _, err := conn.exec("DO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM " + who + "', current_database()); END $$"); err != nil {
			t.Fatal(err)
		}
		q = try(t, roleURL(source, who), "--for", "500ms")
		if code := q.exitCode(); code != 78 || !strings.Contains(q.said(), "GRANT CREATE ON DATABASE") {
			t.Errorf("exit code %d, want 78", code)
		}
		q.expectNothingLeft(t, source, before)
	})
}

func TestQuickstartUsage(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--for=0s": "--for is 0s", "--for=soon": "--for", "--rate=0": "--rate is 0", "--rate=1.5": "--rate",
		"--groups=0": "--groups is 0", "--fail-rate=1": "--fail-rate is 1", "--fail-rate=NaN": "--fail-rate is NaN",
		"--source=oracle://u:canary@db/x": "--source must begin with postgres://", "--source=sqlite:canary.db": "--source takes a database server",
		"--slow": "--slow",
	} {
		stdout, stderr, code := command(t, nil, "quickstart", flag)
		if code != 64 || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "canary") {
			t.Errorf("%s: exit code %d, %q", flag, code, stderr)
		}
	}
	for _, source := range []string{"postgres://u:canary@ADDRESS/x?sslmode=disable", "mysql://u:canary@ADDRESS/x?tls=false", "mongodb://u:canary@ADDRESS/x"} {
		stdout, stderr, code := command(t, nil, "quickstart", "--source", strings.Replace(source, "ADDRESS", freeAddress(t), 1))
		if code != 1 || stdout != "" || !strings.Contains(stderr, "refused") || strings.Contains(stderr, "canary") {
			t.Errorf("unreachable server: exit code %d, want 1, %q", code, stderr)
		}
	}
}
