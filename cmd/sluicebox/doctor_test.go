package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/store"
)

func finding(part string, grade store.Grade, subject, text, remedy string) app.Finding {
	return app.Finding{Part: part, Finding: store.Finding{Grade: grade, Subject: subject, Text: text, Remedy: remedy}}
}

// TestDoctorOutput checks that prose wraps at 80 columns, statements do not, and both
// forms have the same content.
func TestDoctorOutput(t *testing.T) {
	const statement = `GRANT SELECT ("id", "message_group", "payload", "created_at", "status", "retry_count", "error_message") ON "outbox_events" TO "relay";`
	const words = "look at this and that and at much more besides, which takes more than a line of eighty columns to say"
	found := []app.Finding{
		finding(app.PartDatabase, store.GradeOK, "server", "PostgreSQL 18", ""),
		finding(app.PartDatabase, store.GradeFault, "outbox x", "it lacks\x1b[31m a right\nor two, "+words, "-- as an administrator; "+words+"\n"+statement),
		finding(app.PartSinks, store.GradeAdvice, "hooks", "reached", words),
	}
	found[1].Configuration = "outboxes:\n- table: x # sure:\x1b[31m " + words[:30] + "\n"
	var out bytes.Buffer
	p := &program{stdout: &out}
	if err := p.printFindings(found, nil); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.ContainsRune(line, '\x1b') || strings.TrimSpace(line) != statement && utf8.RuneCountInString(line) > 80 {
			t.Errorf("a line that a terminal spoils: %q", line)
		}
		if strings.Contains(text, "\n"+line) && strings.HasPrefix(strings.TrimSpace(line), "look at this") && !strings.HasPrefix(line, "          ") {
			t.Errorf("a remedy that does not stand beneath its finding: %q", line)
		}
	}
	for _, want := range []string{"database\n  ok      server: PostgreSQL 18\n  fault   outbox x: it lacks", "\n          -- as an administrator;", "\n          " + statement + "\n",
		"\n          or write the outbox as the table is:\n          outboxes:\n          - table: x # sure:",
		"\nsinks\n  advice  hooks: reached\n          look at", "\n1 fault, 1 piece of advice.\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n          -- "); n < 2 {
		t.Errorf("a comment goes on in a line that is none:\n%s", text)
	}
	out.Reset()
	if err := p.jsonFindings(found, nil); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Findings []map[string]any
		Faults   int
	}
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if read.Faults != 1 || len(read.Findings) != 3 || read.Findings[1]["grade"] != "fault" || read.Findings[1]["part"] != "database" ||
		read.Findings[2]["statements"] != nil {
		t.Errorf("the JSON is %s", out.String())
	}
	if want := []any{map[string]any{"sql": statement, "condition": "as an administrator; " + words}}; !reflect.DeepEqual(read.Findings[1]["statements"], want) {
		t.Errorf("the statements are %v, want %v", read.Findings[1]["statements"], want)
	}
}

// TestDoctorStatements checks that a comment above statements applies to each of them.
func TestDoctorStatements(t *testing.T) {
	for remedy, want := range map[string][]jsonStatement{
		"":                          nil,
		"start the receiver":        nil,
		"GRANT a;":                  {{SQL: "GRANT a;"}},
		"GRANT a;\n-- on leave":     {{SQL: "GRANT a;"}},
		"-- if nobody needs it\nA;": {{"A;", "if nobody needs it"}},
		"-- as a superuser\nA;\nB;\n-- on\n-- top\nC;": {{"A;", "as a superuser"}, {"B;", "as a superuser"}, {"C;", "on top"}},
		"A;\nor, instead\nB;":                          {{SQL: "A;"}, {"B;", "or, instead"}},
	} {
		if got := statementsOf(remedy); !slices.Equal(got, want) {
			t.Errorf("of %q: %+v, want %+v", remedy, got, want)
		}
	}
}

// TestDoctorVerdict checks that advice is no fault, and that something unreachable is not
// a fault of the configuration.
func TestDoctorVerdict(t *testing.T) {
	fine, advice := finding("p", store.GradeOK, "s", "t", ""), finding("p", store.GradeAdvice, "s", "t", "r")
	fault, away := finding("p", store.GradeFault, "s", "t", "r"), finding("p", store.GradeFault, "s", "t", "")
	away.Unreachable = true
	for _, c := range []struct {
		found []app.Finding
		code  int
		sum   string
	}{
		{[]app.Finding{fine}, exitOK, "No problems found."},
		{[]app.Finding{fine, advice, advice}, exitOK, "No fault, 2 pieces of advice."},
		{[]app.Finding{advice, away}, exitFailed, "1 unreachable, 1 piece of advice."},
		{[]app.Finding{fault, fault, away, away}, exitConfig, "2 faults, 2 unreachable."},
	} {
		code := exitOK
		var end *commandError
		if errors.As(doctorError(c.found), &end) {
			code = end.code
		}
		if sum := countFindings(c.found).String(); code != c.code || sum != c.sum {
			t.Errorf("exit code %d and %q, want %d and %q", code, sum, c.code, c.sum)
		}
	}
}

// TestDoctorOfABadConfiguration checks that the problems of a configuration are findings,
// in the order of their lines.
func TestDoctorOfABadConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("source: {url: 'mysql://x'}\nnothing: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	p := &program{stdout: &out, stderr: &errs}
	if code := p.main([]string{"doctor", "-c", file}); code != exitConfig {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	plain := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"configuration fault", "c.yaml:1: source.url: ", "c.yaml:2: nothing: unknown key", "faults."} {
		if !strings.Contains(plain, want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

// TestDoctorOfSources checks that many sources with the same fault show it once, that the worst sources
// are listed first, and that those without a fault are only counted.
func TestDoctorOfSources(t *testing.T) {
	var names []string
	found := []app.Finding{finding(app.PartConfiguration, store.GradeOK, "sources", "200", ""), finding(app.PartSinks, store.GradeOK, "hooks", "reached", "")}
	add := func(source string, f app.Finding) {
		f.Source = source
		found = append(found, f)
	}
	for i := range 200 {
		name := fmt.Sprintf("ten%d", i)
		names = append(names, name)
		add(name, finding(app.PartDatabase, store.GradeOK, "server", "PostgreSQL 18", ""))
		if i == 7 {
			away := finding(app.PartDatabase, store.GradeFault, "database", "refused", "start it")
			away.Unreachable = true
			add(name, away)
			continue
		}
		if i >= 190 {
			add(name, finding(app.PartLog, store.GradeFault, "publication", name+" does not exist", "CREATE PUBLICATION "+name+";"))
		}
		if i == 195 {
			add(name, finding(app.PartDatabase, store.GradeFault, "outbox letters", "is missing", "create it"))
		}
		if i%2 == 0 {
			add(name, finding(app.PartLog, store.GradeAdvice, "retained log", "unlimited", "limit it"))
		}
	}
	var out bytes.Buffer
	p := &program{stdout: &out}
	if err := p.printFindings(found, names); err != nil {
		t.Fatal(err)
	}
	const want = `configuration
  ok      sources: 200

sinks
  ok      hooks: reached

sources
  fault   publication: ten190 does not exist
          in ten190, ten191, ten192, ten193, ten194 and 5 more (--source-name
          NAME shows that of one)
          CREATE PUBLICATION ten190;
  fault   outbox letters: is missing
          in ten195
          create it
  fault   database: refused
          in ten7
          start it
  advice  retained log: unlimited
          in ten0, ten2, ten4, ten6, ten8 and 95 more (--source-name NAME shows
          that of one)
          limit it

SOURCE  GRADE        FAULTS  ADVICE  FIRST
ten195  fault        2       0       publication: ten195 does not exist
ten190  fault        1       1       publication: ten190 does not exist
ten192  fault        1       1       publication: ten192 does not exist
ten194  fault        1       1       publication: ten194 does not exist
ten196  fault        1       1       publication: ten196 does not exist
ten198  fault        1       1       publication: ten198 does not exist
ten191  fault        1       0       publication: ten191 does not exist
ten193  fault        1       0       publication: ten193 does not exist
ten197  fault        1       0       publication: ten197 does not exist
ten199  fault        1       0       publication: ten199 does not exist
ten7    unreachable  1       0       database: refused

200 sources: 10 with faults, 1 unreachable, 95 with advice, 94 ok

11 faults, 1 unreachable, 100 pieces of advice.
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := p.jsonFindings(found, names); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Sources  []jsonSource
		Findings []jsonFinding
	}
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Sources) != 200 || read.Sources[0] != (jsonSource{"ten195", "fault", 2, 0, 0}) || read.Sources[199].Grade != "ok" || read.Findings[2].Source != "ten0" {
		t.Errorf("the JSON has %d sources, the first is %+v; the third finding %+v", len(read.Sources), read.Sources[0], read.Findings[2])
	}
}
