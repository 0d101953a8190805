package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// tap is a process of `sluicebox tap`, with its output file.
type tap struct {
	*relay
	out string
}

// tapReads is the log message of a tap that has started to read.
const tapReads = "tap started"

// startTap runs `sluicebox tap` on a configuration and waits until it reads.
func startTap(t testing.TB, yaml string, args ...string) *tap {
	t.Helper()
	p := spawnTap(t, yaml, args...)
	p.waitFor(tapReads)
	return p
}

func spawnTap(t testing.TB, yaml string, args ...string) *tap {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "rows"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	p := &tap{relay: &relay{t: t, ended: make(chan struct{}), grown: make(chan struct{})}, out: out.Name()}
	p.cmd = exec.Command(binary, append([]string{"tap", "-c", configFile(t, yaml)}, args...)...)
	p.cmd.Env, p.cmd.Stdout = environment(), out
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.watch(pipe)
	t.Cleanup(p.kill)
	return p
}

// configFile writes a configuration for a command without an admin address.
func configFile(t testing.TB, yaml string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluicebox.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(yaml, adminKey, "''")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// printed returns the output so far.
func (p *tap) printed() string {
	p.t.Helper()
	text, err := os.ReadFile(p.out)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// awaitLines waits until it has printed that many rows.
func (p *tap) awaitLines(n int) []string {
	p.t.Helper()
	within(p.t, testTimeout, func() string {
		if got := strings.Count(p.printed(), "\n"); got != n {
			return fmt.Sprintf("%d rows were printed, not %d: %s%s", got, n, p.printed(), p.said())
		}
		return ""
	})
	return strings.Split(strings.TrimSuffix(p.printed(), "\n"), "\n")
}

// tappedRow is a row as --json prints it.
type tappedRow struct {
	CommittedAt time.Time `json:"committed_at"`
	Outbox      string    `json:"outbox"`
	Kind        string    `json:"kind"`
	Group       *string   `json:"group"`
	ID          string    `json:"id"`
	PayloadSize int       `json:"payload_size"`
	Payload     *string   `json:"payload"`
}

func (p *tap) rows() (rows []tappedRow) {
	p.t.Helper()
	for line := range strings.Lines(p.printed()) {
		var row tappedRow
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			p.t.Fatalf("%v in %s", err, line)
		}
		rows = append(rows, row)
	}
	return rows
}

// received converts tapped rows to received ones.
func received(rows []tappedRow) (list []sinktest.Received) {
	for i := range rows {
		list = append(list, sinktest.Received{ID: rows[i].ID, Kind: rows[i].Kind, Payload: []byte(*rows[i].Payload)})
	}
	return list
}

// A tap beside a relay under load prints each row once, in commit order, as the relay delivers
// it, and does not disturb the relay. When it ends, it leaves nothing on the server.
func TestTap(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		const rows = 2000
		slots := "SELECT count(*) FROM pg_replication_slots WHERE temporary AND slot_name LIKE '" + nameFor(s.database) + `\_tap\_%'`
		r := s.run()
		epoch := r.metric("sluicebox_leader_epoch")
		p := startTap(s.t, s.config, "--json", "--limit", fmt.Sprint(rows))
		if !s.kind.postgres {
			slots = "SELECT 0" // the others retain no log for it
		} else if n := count(s.t, s.conn, slots); n != 1 {
			s.t.Errorf("the tap has %d temporary slots, want 1", n)
		}
		write(s.t, s.database, load{transactions: rows, clients: 8, scripts: seedScripts(20)})()
		if n := s.expectOnce(); n != rows {
			s.t.Fatalf("the load wrote %d rows", n)
		}
		if code := p.exitCode(); code != 0 {
			s.t.Errorf("exit code %d at the limit, want 0: %s", code, p.said())
		}
		seen := p.rows()
		for i := range seen {
			if at := time.Since(seen[i].CommittedAt); at < 0 || at > time.Hour || seen[i].PayloadSize != len(*seen[i].Payload) {
				s.t.Fatalf("row %s committed %s ago, of %d bytes: %s", seen[i].ID, at, seen[i].PayloadSize, *seen[i].Payload)
			}
		}
		events, again := oracle{"EVENT", "events"}.checkOrder(s.t, s.conn, received(seen))
		jobs, more := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(s.t, s.conn, received(seen))
		if events+jobs != rows || again+more > 0 {
			s.t.Errorf("the tap showed %d events and %d jobs of %d rows, %d again", events, jobs, rows, again+more)
		}
		within(s.t, testTimeout, func() string { return none(s.t, s.conn, "are slots that a tap left", slots) })
		if now := r.metric("sluicebox_leader_epoch"); now != epoch {
			s.t.Errorf("the relay is in epoch %v, and was in %v", now, epoch)
		}
		expectStop(s.t, r)
	})
}

// insertEvent is the statement that inserts an event.
func insertEvent(id, group, payload string) string {
	return fmt.Sprintf("INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ('%s', 'EVENT', %s, E'%s', 'PENDING', now())",
		id, group, payload)
}

// The filters and output formats of a tap. Without a relay, the rows stay unchanged.
func TestTapFilters(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		if _, stderr, code := command(s.t, nil, "init", "-c", configFile(s.t, s.config)); code != 0 {
			s.t.Fatalf("init: %s", stderr)
		}
		servers.Exec(s.t, s.database, insertEvent("A000000000000", "'before'", "{}"))
		taps := map[string]*tap{
			"A000000000001": startTap(s.t, s.config, "--json", "--group", "wanted", "--kind", "EVENT"),
			"A000000000002": startTap(s.t, s.config, "--json", "--no-group"),
			"A000000000003": startTap(s.t, s.config, "--json", "--outbox", "outbox_dispatch_jobs"),
			"A000000000004": startTap(s.t, s.config, "--json", "--group", "\x1b[2J"),
		}
		plain := startTap(s.t, s.config)
		all := startTap(s.t, s.config, "--payload")
		servers.Exec(s.t, s.database,
			insertEvent("A000000000001", "'wanted'", `{"a": 1}`),
			insertEvent("A000000000002", "NULL", `two\nlines\x1b[2J`),
			strings.Replace(insertEvent("A000000000003", "'wanted'", "{}"), "outbox_events", "outbox_dispatch_jobs", 1),
			insertEvent("A000000000004", `E'\x1b[2J'`, "{}"))
		lines, short := all.awaitLines(4), plain.awaitLines(4)
		for i, want := range []string{
			`  outbox_events  EVENT  wanted  A000000000001  8 B  {"a": 1}`,
			`  outbox_events  EVENT  (none)  A000000000002  13 B  two\nlines\x1b[2J`,
			`  outbox_dispatch_jobs  DISPATCH_JOB  wanted  A000000000003  2 B  {}`,
			`  outbox_events  EVENT  "\x1b[2J"  A000000000004  2 B  {}`,
		} {
			head, _, _ := strings.Cut(want, " B  ")
			if !strings.HasSuffix(lines[i], "Z"+want) || !strings.HasSuffix(short[i], "Z"+head+" B") {
				s.t.Errorf("row %d: %q and %q, want %q", i+1, lines[i], short[i], want)
			}
		}
		for id, p := range taps {
			p.awaitLines(1)
			if got := p.rows()[0]; got.ID != id {
				s.t.Errorf("row %s was chosen, not %s", got.ID, id)
			}
		}
		if got := taps["A000000000002"].rows()[0]; got.Group != nil || *got.Payload != "two\nlines\x1b[2J" {
			s.t.Errorf("row without a group: %+v", got)
		}
		for _, p := range slices.Concat(slices.Collect(maps.Values(taps)), []*tap{all, plain}) {
			if code := p.stop(); code != 0 {
				s.t.Errorf("exit code %d after a signal, want 0: %s", code, p.said())
			}
		}
		if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'PENDING' AND processed_at IS NULL"); n != 4 {
			s.t.Errorf("%d of 4 events are as they were, want 4", n)
		}
	})
}

// If the log is unreadable, a tap prints the remedy and creates nothing.
func TestTapWithoutALog(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		who := role(s.t, s.database)
		refused := func(yaml string, code int, args []string, want ...string) {
			s.t.Helper()
			_, stderr, got := command(s.t, nil, append([]string{"tap", "-c", configFile(s.t, yaml)}, args...)...)
			if got != code {
				s.t.Errorf("exit code %d, want %d", got, code)
			}
			for _, text := range want {
				if !strings.Contains(stderr, text) {
					s.t.Errorf("the message lacks %q:\n%s", text, stderr)
				}
			}
		}
		refused(s.config, 78, nil, "does not exist", "CREATE PUBLICATION", `"outbox_events"`)
		refused(preset(roleURL(s.database, who), s.to.URL(), ""), 78, nil, "ALTER ROLE", "REPLICATION")
		refused(s.config, 64, []string{"--outbox", "nothing"}, "outbox_events", "outbox_dispatch_jobs")
		refused(s.config, 64, []string{"--limit", "-1"}, "--limit")
		if n := count(s.t, s.conn, "SELECT count(*) FROM pg_publication") + count(s.t, s.conn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'sluicebox'"); n > 0 {
			s.t.Error("the tap created objects")
		}
	})
}

// A tap waits for an open transaction that blocks its slot. If no slot is free, it reports that.
func TestTapNeedsASlot(t *testing.T) {
	t.Parallel()
	anOwnPostgres(t, map[string]string{"max_replication_slots": "1"}, "", func(s *scene, _ *servers.Server) {
		if _, stderr, code := command(s.t, nil, "init", "-c", configFile(s.t, s.config)); code != 0 {
			s.t.Fatalf("init: %s", stderr)
		}
		tx, err := s.conn.BeginTx(context.Background(), nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := tx.ExecContext(context.Background(), insertEvent("A000000000001", "NULL", "{}")); err != nil {
			s.t.Fatal(err)
		}
		p := spawnTap(s.t, s.config, "--json", "--limit", "1")
		p.waitFor("waiting for open transaction")
		if err := tx.Commit(); err != nil {
			s.t.Fatal(err)
		}
		p.waitFor(tapReads)
		servers.Exec(s.t, s.database, insertEvent("A000000000002", "NULL", "{}"))
		if code := p.exitCode(); code != 0 || len(p.rows()) != 1 || p.rows()[0].ID != "A000000000002" {
			s.t.Errorf("exit code %d, want 0, %s%s", code, p.printed(), p.said())
		}
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are slots that a tap left", "SELECT count(*) FROM pg_replication_slots")
		})
		r := s.run()
		_, stderr, code := command(s.t, nil, "tap", "-c", configFile(s.t, s.config))
		if code != 78 || !strings.Contains(stderr, "max_replication_slots") {
			s.t.Errorf("exit code %d, want 78: %s", code, stderr)
		}
		expectStop(s.t, r)
	})
}

// A tap on SQLite reads the relay's log table beside the relay.
func TestTapOnSQLite(t *testing.T) {
	t.Parallel()
	source, db := seedFile(t)
	to := sinktest.NewReceiver(t)
	config := preset(source, to.URL(), "")
	_, stderr, code := command(t, nil, "tap", "-c", configFile(t, config))
	if code != 78 || !strings.Contains(stderr, "sluicebox init") {
		t.Errorf("without a log: exit code %d, want 78, %s", code, stderr)
	}
	r := start(t, config)
	r.waitFor("source connected")
	insertNumbered(t, db, 1, 10)
	arrive(t, to, 10)
	p := startTap(t, config, "--json", "--limit", "300")
	for i := range 30 {
		insertNumbered(t, db, 11+10*i, 20+10*i)
	}
	if code := p.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, p.said())
	}
	for i, row := range p.rows() {
		if want := fmt.Sprintf("%013d", 11+i); row.ID != want || !strings.Contains(*row.Payload, want) {
			t.Fatalf("row %d is %s: %s", i, row.ID, *row.Payload)
		}
	}
	arrive(t, to, 310)
	expectStop(t, r)
	if again := checkNumbered(t, to.Accepted()); again > 0 {
		t.Errorf("%d rows arrived more than once, want 0", again)
	}
}
