package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// findingsOf returns the findings of a subject.
func findingsOf(found []store.Finding, subject string) []store.Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f store.Finding) bool { return f.Subject != subject })
}

// expectFixed runs a diagnosis, expects one finding of a grade and subject that contains
// text, runs its remedy, and expects the subject to be fine afterwards.
func expectFixed(t *testing.T, url string, examine func() []store.Finding, subject string, grade store.Grade, text string) {
	t.Helper()
	wrong := findingsOf(examine(), subject)
	wrong = slices.DeleteFunc(wrong, func(f store.Finding) bool { return f.Grade == store.GradeOK })
	if len(wrong) != 1 || wrong[0].Grade != grade || !strings.Contains(wrong[0].Text, text) {
		t.Fatalf("%s: got findings %+v, want one of grade %s with %q", subject, wrong, grade, text)
	}
	for line := range strings.Lines(wrong[0].Remedy) {
		if line = strings.TrimSpace(line); strings.HasSuffix(line, ";") {
			servers.Exec(t, url, line)
		}
	}
	for _, f := range findingsOf(examine(), subject) {
		if f.Grade != store.GradeOK {
			t.Errorf("after the remedy %q: got findings %+v", wrong[0].Remedy, f)
		}
	}
}

// awaitEnded repeats a check until the sessions that the test has closed have ended, which the server
// does a moment later.
func awaitEnded(t *testing.T, check func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(rigs.CallTimeout); ; <-tick.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestIndexOfUnsettledRows: for each kind of state the advice names an index that the
// planner then uses.
func TestIndexOfUnsettledRows(t *testing.T) {
	t.Parallel()
	const columns = `(id text PRIMARY KEY, message_group text, payload text, status %s NOT NULL, retry_count int NOT NULL DEFAULT 0,
		created_at timestamptz NOT NULL, processed_at timestamptz, error_message text, sent timestamptz, gone timestamptz, updated_at timestamptz)%s`
	odd := store.FlowCatalyst()
	odd.Words = map[store.Status]string{store.Pending: `it's\new`, store.Processing: "p", store.Completed: "c", store.Failed: "f"}
	timed := store.FlowCatalyst()
	timed.State, timed.Words = store.StateTimestamps, nil
	timed.Columns.Status, timed.Columns.Delivered, timed.Columns.Failed = "", "sent", "gone"
	numbered := store.FlowCatalyst()
	numbered.State, numbered.Words = store.StateNumbers, nil
	numbered.Numbers = map[store.Status]int{store.Pending: 0, store.Processing: 9, store.Completed: 1, store.Failed: 3}
	unclaimed, unfailing := numbered, timed
	unclaimed.Numbers = map[store.Status]int{store.Pending: 0, store.Completed: 1, store.Failed: 3}
	unfailing.Columns.Failed = ""
	for _, version := range servers.Spread(t, servers.Versions()) {
		for name, c := range map[string]struct {
			layout       store.Layout
			status, tail string
			first        string // an index that suffices
		}{
			"words":       {store.FlowCatalyst(), "varchar(20)", "", "CREATE INDEX ON box (status, message_group)"},
			"odd words":   {odd, "text", "", "CREATE INDEX ON box (status)"},
			"numbers":     {numbered, "smallint", "", "CREATE INDEX ON box (status)"},
			"unclaimed":   {unclaimed, "smallint", "", "CREATE INDEX ON box (status)"},
			"unfailing":   {unfailing, "text", "", "CREATE INDEX ON box (sent)"},
			"timestamps":  {timed, "text", "", "CREATE INDEX ON box (sent)"},
			"partitioned": {store.FlowCatalyst(), "text", " PARTITION BY HASH (id)", "CREATE INDEX ON box (status)"},
		} {
			t.Run(fmt.Sprintf("pg%d/%s", version, name), func(t *testing.T) {
				url := servers.Database(t, version)
				ddl := "CREATE TABLE box " + fmt.Sprintf(columns, c.status, c.tail)
				servers.Exec(t, url, ddl)
				if c.tail != "" {
					servers.Exec(t, url, "CREATE TABLE box0 PARTITION OF box FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
						"CREATE TABLE box1 PARTITION OF box FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
				}
				examine := diagnoser(t, url, store.Outbox{Name: "box", Table: "box", Kind: "EVENT", Layout: c.layout})
				servers.Exec(t, url, "CREATE INDEX ON box (created_at)", "CREATE INDEX ON box (id) WHERE retry_count = 7")
				for _, f := range examine() {
					if strings.Contains(f.Remedy, "IN (0, 0)") || strings.Contains(f.Remedy, `""`) {
						t.Errorf("the advice names a state twice, or no column: %s", f.Remedy)
					}
				}
				expectFixed(t, url, examine, "outbox box", store.GradeAdvice, "no index")
				servers.Exec(t, url, "DROP TABLE box", ddl, c.first)
				for _, f := range findingsOf(examine(), "outbox box") {
					if f.Grade != store.GradeOK {
						t.Errorf("with index %s: got findings %+v", c.first, f)
					}
				}
			})
		}
	}
}

// diagnoser diagnoses a database with the relay's tables installed.
func diagnoser(t *testing.T, url string, boxes ...store.Outbox) func() []store.Finding {
	t.Helper()
	st, err := New(Config{URL: url, Name: "rig", Outboxes: boxes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if err := st.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	return func() []store.Finding {
		t.Helper()
		found, err := st.Diagnose(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
}

// TestLockedTable: a lock that blocks readers is reported with its holder, and the
// diagnosis does not wait for it.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			servers.Exec(t, url, `CREATE TABLE box (id text PRIMARY KEY, message_group text, payload text, status text NOT NULL,
				retry_count int, created_at timestamptz, processed_at timestamptz, error_message text, updated_at timestamptz)`)
			examine := diagnoser(t, url, store.Outbox{Name: "box", Table: "box", Kind: "EVENT", Layout: store.FlowCatalyst()})
			conn := servers.Connect(t, url)
			if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE box IN ACCESS EXCLUSIVE MODE", pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			found := findingsOf(examine(), "outbox box")
			last := found[len(found)-1]
			for _, want := range []string{`a session holds a lock on "box"`, fmt.Sprintf("pid %d,", conn.PgConn().PID())} {
				if last.Grade != store.GradeAdvice || !strings.Contains(last.Text, want) {
					t.Errorf("%+v, want %q", found, want)
				}
			}
			var table string
			var granted bool
			_, statement, _ := strings.Cut(last.Remedy, "\n")
			if err := servers.Connect(t, url).QueryRow(t.Context(), "SELECT relation::text, granted FROM ("+strings.TrimSuffix(statement, ";")+") q").Scan(&table, &granted); err != nil || table != "box" || !granted {
				t.Errorf("%s shows %s, granted %t: %v", statement, table, granted, err)
			}
		})
	}
}

// TestTimeoutsOfTheRole: too short timeouts of the role are reported and reset; long
// enough ones are left alone.
func TestTimeoutsOfTheRole(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			servers.Exec(t, url, "CREATE TABLE box (id text PRIMARY KEY)")
			give := func(setting string) {
				servers.Exec(t, url, "DO $$ BEGIN EXECUTE format('ALTER ROLE postgres IN DATABASE %I SET "+setting+"', current_database()); END $$")
			}
			examine := diagnoser(t, url, store.Outbox{Name: "box", Table: "box", Kind: "EVENT", Layout: store.FlowCatalyst()})
			for setting, text := range map[string]string{"statement_timeout = ''5s''": "statement_timeout is 5s", "idle_session_timeout = ''1h''": "idle_session_timeout is 1h0m0s"} {
				give(setting)
				expectFixed(t, url, examine, "timeouts", store.GradeAdvice, text)
			}
			give("statement_timeout = ''10min''")
			if found := findingsOf(examine(), "timeouts"); len(found) != 1 || found[0].Grade != store.GradeOK {
				t.Errorf("statement timeout of 10 minutes: got findings %+v", found)
			}
			give("default_transaction_read_only = on")
			found := findingsOf(examine(), "server")
			i := slices.IndexFunc(found, func(f store.Finding) bool { return f.Grade == store.GradeFault })
			if i < 0 || !strings.Contains(found[i].Text, "read-only") {
				t.Fatalf("read-only transactions: got findings %+v", found)
			}
			servers.Exec(t, url, strings.Split(found[i].Remedy, "\n")...)
			if found := findingsOf(examine(), "server"); len(found) != 1 {
				t.Errorf("after the fix: got findings %+v", found)
			}
		})
	}
}

// TestClock: a clock difference above a second is reported with its direction.
func TestClock(t *testing.T) {
	conn := servers.Connect(t, servers.Database(t, servers.Versions()[0]))
	for shift, want := range map[time.Duration]string{
		0: "less than a second", time.Minute: "ahead of the server", -time.Minute: "behind the server",
	} {
		c := checker{conn: conn, now: func() time.Time { return time.Now().Add(shift) }}
		if err := c.clock(t.Context()); err != nil {
			t.Fatal(err)
		}
		grade := store.GradeAdvice
		if shift == 0 {
			grade = store.GradeOK
		}
		if len(c.Findings) != 1 || c.Findings[0].Grade != grade || !strings.Contains(c.Findings[0].Text, want) || (grade == store.GradeAdvice) != (c.Findings[0].Remedy != "") {
			t.Errorf("clock off by %s: got findings %+v", shift, c.Findings)
		}
	}
}

// TestConnectionLimits: connection limits of the role and the database are reported if
// they leave too few sessions, and a relay's own sessions do not count against them.
func TestConnectionLimits(t *testing.T) {
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			admin := servers.Database(t, version)
			database := databaseOf(t, admin)
			role := "limited_" + database
			servers.Exec(t, admin, "CREATE ROLE "+role+" LOGIN", "CREATE TABLE box (id text PRIMARY KEY)", "GRANT CREATE ON DATABASE "+database+" TO "+role)
			t.Cleanup(func() { dropRole(t, admin, role) })
			url := strings.Replace(admin, "postgres@", role+"@", 1)
			examine := diagnoser(t, url, store.Outbox{Name: "box", Table: "box", Kind: "EVENT", Layout: store.FlowCatalyst()})
			for _, of := range []string{"ROLE " + role, "DATABASE " + database} {
				quoted := strings.Replace(of, " ", ` "`, 1) + `"`
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT 12")
				expectFixed(t, admin, examine, "connections", store.GradeAdvice, quoted+" has CONNECTION LIMIT 12")
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT 13") // the rig's control session counts as one
				awaitEnded(t, func() error {
					if found := findingsOf(examine(), "connections"); len(found) != 1 || found[0].Grade != store.GradeOK {
						return fmt.Errorf("%s with limit 13: got findings %+v", of, found)
					}
					return nil
				})
				var other *pgx.Conn
				awaitEnded(t, func() (err error) {
					other, err = pgx.Connect(t.Context(), url)
					return err
				})
				awaitEnded(t, func() error {
					if found := findingsOf(examine(), "connections"); len(found) != 2 || found[1].Grade != store.GradeAdvice || !strings.Contains(found[1].Text, "others use 1") {
						return fmt.Errorf("%s with limit 13 and another session: got findings %+v", of, found)
					}
					return nil
				})
				_ = other.Close(t.Context())
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT 4")
				expectFixed(t, admin, examine, "connections", store.GradeFault, quoted+" has CONNECTION LIMIT 4")
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT -1")
			}
		})
	}
}

// Only a checked certificate counts as verified.
func TestEncryptionOfURL(t *testing.T) {
	for query, want := range map[string]finding.Encryption{
		"": {Encrypted: true, Verified: true}, "?sslmode=verify-ca": {Encrypted: true, Verified: true}, "?sslmode=require": {Encrypted: true},
		"?sslmode=prefer": {Encrypted: true}, "?sslmode=disable": {},
	} {
		cfg, err := ParseURL("postgres://u@db.example/d"+query, "test")
		if err != nil {
			t.Fatal(err)
		}
		if got := encryption(cfg, want.Encrypted); got != want {
			t.Errorf("%s: got %+v, want %+v", query, got, want)
		}
	}
}
