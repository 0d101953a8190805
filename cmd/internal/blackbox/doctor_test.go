package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// diagnosis is the output of `sluicebox doctor --json`.
type diagnosis struct {
	Findings                    []finding
	Faults, Unreachable, Advice int
}

type finding struct {
	Part, Grade, Subject, Text, Remedy string
	Statements                         []struct{ SQL, Condition string }
	Unreachable                        bool
}

// statements returns the statements that doctor prints, in order.
func (d *diagnosis) statements() (list []string) {
	for _, f := range d.Findings {
		for _, s := range f.Statements {
			list = append(list, s.SQL)
		}
	}
	return list
}

// doctor runs `sluicebox doctor` with and without --json on a configuration and compares the
// two outputs.
func doctor(t *testing.T, yaml string) (d diagnosis, text string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluicebox.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(yaml, adminKey, "127.0.0.1:0")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, stderr, code := command(t, nil, "doctor", "--json", "-c", file)
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("doctor --json: %v\n%s%s", err, out, stderr)
	}
	text, _, again := command(t, nil, "doctor", "-c", file)
	if again != code {
		t.Errorf("exit code %d with --json, and %d without", code, again)
	}
	for _, statement := range d.statements() {
		if !strings.Contains(text, "\n          "+statement+"\n") {
			t.Errorf("the text lacks the line %q:\n%s", statement, text)
		}
	}
	for _, f := range d.Findings {
		for _, s := range f.Statements {
			if s.Condition == "" && (strings.Contains(s.SQL, "pg_drop_") || strings.Contains(s.SQL, "pg_terminate_")) {
				t.Errorf("a statement that takes something away stands alone: %s", s.SQL)
			}
		}
	}
	return d, text, code
}

// Doctor reports each fault with the statement that fixes it, and reports no fault once its
// statements were run.
func TestDoctor(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		p := newDoctorFixture(t, version)
		p.expectNoFaults()
		for _, ill := range faultCases() {
			t.Run(ill.name, func(t *testing.T) { p.checkFault(t, &ill) })
		}
		for _, ill := range serverFaultCases() {
			t.Run(ill.name, func(t *testing.T) { p.checkFaultWithRestart(t, &ill) })
		}
	})
}

// With the preset and the table of today's SDKs, doctor prints the right configuration, and
// that one has no fault.
func TestDoctorSuggestsOutboxMessages(t *testing.T) {
	t.Parallel()
	onHosts(t, kinds(t), func(t *testing.T, h host) {
		database, _ := prepare(t, h, func(k *kind) string { return k.messages })
		const receiver = "http://127.0.0.1:1"
		preset := preset(database, receiver, "")
		d, text, code := doctor(t, preset)
		i := slices.IndexFunc(d.Findings, func(f finding) bool {
			return f.Grade == "advice" && strings.Contains(f.Text, "table outbox_messages exists")
		})
		if i < 0 || code != 78 {
			t.Fatalf("exit code %d, want 78:\n%s", code, text)
		}
		_, use, _ := strings.Cut(d.Findings[i].Remedy, "\n")
		use = strings.Replace(strings.Replace(use, "…", receiver, 1), "…", "token", 1)
		for line := range strings.Lines(preset) {
			if !strings.HasPrefix(line, "flowcatalyst:") {
				use += "\n" + strings.TrimSpace(line)
			}
		}
		d, text, _ = doctor(t, use)
		if !slices.ContainsFunc(d.Findings, func(f finding) bool { return f.Grade == "ok" && f.Subject == "outbox outbox_messages" }) ||
			strings.Contains(text, "outbox_events") {
			t.Errorf("with\n%s\ndoctor says\n%s", use, text)
		}
	})
}

// Doctor names the remedy of faults that no statement can fix.
func TestDoctorOfAConfiguration(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		database, _ := prepare(t, postgresHost(version), seedTables)
		const token = "the-right-token"
		receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch { // the platform checks the method first, then the credentials
			case r.Method != http.MethodPost:
				w.WriteHeader(http.StatusMethodNotAllowed)
			case r.Header.Get("Authorization") != "Bearer "+token:
				w.WriteHeader(http.StatusUnauthorized)
			default:
				w.WriteHeader(http.StatusCreated)
			}
		}))
		t.Cleanup(receiver.Close)
		right := strings.Replace(preset(database, receiver.URL, ""), "api-base-url", "api-token: "+token+", api-base-url", 1)
		if _, stderr, code := command(t, nil, "init", "-c", configFile(t, right)); code != 0 {
			t.Fatal(stderr)
		}
		if _, text, code := doctor(t, right); code != 0 {
			t.Fatalf("exit code %d of a configuration that is right, want 0:\n%s", code, text)
		}
		refused := "http://" + freeAddress(t)
		away := strings.Replace(right, database, "postgres://postgres@"+freeAddress(t)+"/x?sslmode=disable", 1)
		full := nameFor(database) + "_full"
		servers.Exec(t, database, "CREATE ROLE "+full+" LOGIN CONNECTION LIMIT 0")
		t.Cleanup(func() { servers.Exec(t, database, "DROP ROLE "+full) })
		pooler := strings.Replace(right, database, servers.Pooler(t, database, "transaction", "extra_float_digits", "options"), 1)
		for name, c := range map[string]struct {
			config string
			code   int
			want   []string
		}{
			"a pooler by transaction": {pooler, 78, []string{"pooler", "use the URL of the database itself"}},
			"a token that is refused": {strings.Replace(right, token, "another", 1), 78, []string{"401 Unauthorized", "give sink flowcatalyst a token"}},
			"nobody at the sink":      {strings.Replace(right, receiver.URL, refused, 1), 1, []string{"connection refused", "start the receiver"}},
			"nobody at the database":  {away, 1, []string{"connection refused", "fix source.url", "accepts the credentials and an empty list"}},
			"nobody of the name":      {strings.Replace(right, "postgres@", "nobody_at_all@", 1), 78, []string{"nobody_at_all", "check the user and password"}},
			"no session left":         {strings.Replace(right, "postgres@", full+"@", 1), 1, []string{"no connection left on the server", "FROM pg_stat_activity GROUP BY"}},
			"an unknown parameter":    {strings.Replace(right, "?sslmode", "?sslmod=x&sslmode", 1), 78, []string{`unrecognized configuration parameter "sslmod"`, "fix or remove it"}},
			"no such database":        {strings.Replace(right, "?sslmode", "x?sslmode", 1), 78, []string{"does not exist", "check the database name"}},
			"no such table":           {strings.Replace(right, "flowcatalyst: {", "flowcatalyst: {events-table: nowhere, ", 1), 78, []string{`table "nowhere" does not exist`}},
			"an unknown key":          {right + "dispach: {}\n", 78, []string{"sluicebox.yaml:5", "dispach"}},
			"everything at once": {strings.Replace(strings.Replace(away, receiver.URL, refused, 1), "listen: "+adminKey, "token: "+token+", listen: 192.0.2.1:1", 1), 78,
				[]string{"fix source.url", "start the receiver", "admin.listen: cannot listen on 192.0.2.1:1"}},
		} {
			d, text, code := doctor(t, c.config)
			if code != c.code || (c.code == 1) != (d.Faults == 0) {
				t.Errorf("%s: exit code %d, want %d:\n%s", name, code, c.code, text)
			}
			plain := strings.Join(strings.Fields(text), " ")
			for _, want := range c.want {
				if !strings.Contains(plain, want) {
					t.Errorf("%s: doctor output lacks %q:\n%s", name, want, text)
				}
			}
			if strings.Contains(plain, "admin.listen: admin.listen") || name == "no session left" && strings.Contains(plain, "allow connections from this machine") {
				t.Errorf("%s: doctor prints more than wanted:\n%s", name, text)
			}
			if strings.Contains(text, token) {
				t.Errorf("%s: the token is shown:\n%s", name, text)
			}
		}
	})
}

// With mode auto an unreadable log is advice, unless only the log has the rows of an outbox. With
// mode poll doctor does not check it.
func TestDoctorWithAnUnreadableLog(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		p := newDoctorFixture(t, version)
		p.server.Restart(map[string]string{"wal_level": "replica"})
		stream := p.config
		p.config = strings.Replace(stream, "mode: stream", "mode: auto", 1)
		p.expectFault(&faultCase{harmless: true, want: []string{"until fixed, the relay polls", "ALTER SYSTEM SET wal_level = logical;"}})
		p.config = strings.Replace(stream, "mode: stream", "mode: poll", 1)
		p.expectNoFaults()
		p.config = stream
		p.expectFault(&faultCase{want: []string{"wal_level is replica"}})
		messages := fmt.Sprintf(messagesConfig, patientName, "auto", roleURL(p.server.URL, patientRole), p.to.URL(), "", adminKey)
		if _, text, code := doctor(t, messages); code != 78 || !strings.Contains(text, "fault   wal_level: wal_level is replica") || strings.Contains(text, "the relay polls") {
			t.Errorf("exit code %d of messages without a log, want 78 and no word of polling:\n%s", code, text)
		}
	})
}

// Doctor runs beside a relay and its standby and disturbs neither: it acquires neither the
// lock nor the slot, and delivers nothing.
func TestDoctorBesideRelays(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		first := s.run()
		second := start(s.t, s.config)
		second.waitFor("standing by")
		epoch := first.metric("sluicebox_leader_epoch")
		wait := write(s.t, s.database, load{seconds: 6, clients: 4, rate: 100, scripts: seedScripts(5)})
		for _, address := range []string{first.admin, second.admin} {
			yaml := strings.Replace(s.config, adminKey, strings.TrimPrefix(address, "http://"), 1)
			d, text, code := doctor(s.t, yaml)
			if code != 0 {
				s.t.Errorf("exit code %d, want 0:\n%s", code, text)
			}
			said := ""
			for _, f := range d.Findings {
				said += f.Text + "\n"
			}
			for _, want := range []string{"is read by a relay of this name", "a relay already listens on"} {
				if !strings.Contains(said, want) {
					s.t.Errorf("doctor output lacks %q:\n%s", want, text)
				}
			}
		}
		wait()
		s.expectOnce()
		for path, r := range map[string]*relay{"/leader": first, "/readyz": second} {
			if status, body := r.get(path); status != 200 {
				s.t.Errorf("%s is %d: %s", path, status, body)
			}
		}
		if now := first.metric("sluicebox_leader_epoch"); now != epoch {
			s.t.Errorf("epoch %[2]v, want %[1]v as before", epoch, now)
		}
		for _, r := range []*relay{second, first} {
			expectStop(s.t, r)
		}
	})
}

// The roles of the scripts have all privileges that doctor needs.
func TestDoctorUnderLeastPrivilege(t *testing.T) {
	t.Parallel()
	eachRoleScene(t, "", func(c *roleScene) {
		d, text, code := doctor(c.t, c.config)
		if code != 0 || d.Faults > 0 {
			c.t.Errorf("exit code %d, want 0:\n%s", code, text)
		}
		servers.Exec(c.t, c.database, "REVOKE DELETE ON sluicebox.record FROM "+c.relay)
		d, text, code = doctor(c.t, c.config)
		grant := fmt.Sprintf("GRANT DELETE ON sluicebox.record TO %q;", c.relay)
		if code != 78 || d.Faults != 1 || !slices.Contains(d.statements(), grant) {
			c.t.Errorf("exit code %d, want 78 with the statement %s:\n%s", code, grant, text)
		}
	})
}

// On an SQLite file, doctor's statements lead from nothing to a file without faults.
func TestDoctorOnSQLite(t *testing.T) {
	t.Parallel()
	source, db := seedFile(t)
	run(t, db, "DROP INDEX idx_outbox_events_status; DROP INDEX idx_outbox_dispatch_jobs_status")
	to := sinktest.NewReceiver(t)
	config := preset(source, to.URL(), "")
	if _, text, code := doctor(t, config); code != 0 || !strings.Contains(text, "run `sluicebox init`, or start `sluicebox run`") {
		t.Fatalf("exit code %d before init, want 0 with an advice:\n%s", code, text)
	}
	if _, stderr, code := command(t, nil, "init", "-c", configFile(t, config)); code != 0 {
		t.Fatal(stderr)
	}
	d, text, code := doctor(t, config)
	if code != 0 || d.Faults > 0 || d.Advice != 2 || len(d.statements()) != 2 {
		t.Fatalf("exit code %d after init, want 0:\n%s", code, text)
	}
	for _, statement := range d.statements() {
		run(t, db, statement)
	}
	r := start(t, config)
	r.waitFor("source connected")
	if d, text, code := doctor(t, config); code != 0 || d.Advice > 0 {
		t.Errorf("exit code %d in the end, want 0:\n%s", code, text)
	}
	expectStop(t, r)
	absent := strings.Replace(config, "shop.db", "other.db", 1)
	if _, text, code := doctor(t, absent); code != 78 || !strings.Contains(strings.Join(strings.Fields(text), " "), "does not exist") {
		t.Errorf("exit code %d without the file, want 78:\n%s", code, text)
	}
}
