package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// TestMain runs the test binary as the program if a test starts it that way.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
	}
	goleak.VerifyTestMain(m)
}

// result is the result of one command line.
type result struct {
	code           int
	stdout, stderr string
}

// try runs a command line. Starting the relay fails the test unless r has one.
func try(t *testing.T, r backend, environ []string, args ...string) result {
	t.Helper()
	return tryWith(t, program{relay: r, environ: environ}, args...)
}

// tryWith is try with parts of the program given.
func tryWith(t *testing.T, p program, args ...string) result {
	t.Helper()
	r := p.relay
	fail := func() { t.Errorf("%v started the relay", args) }
	if r.run == nil {
		r.run = func(context.Context, app.Options) error { fail(); return nil }
	}
	if r.init == nil {
		r.init = func(context.Context, *config.Config, *slog.Logger) error { fail(); return nil }
	}
	if r.script == nil {
		r.script = func(*config.Config) (string, error) { fail(); return "", nil }
	}
	if r.createOutbox == nil {
		r.createOutbox = func(context.Context, config.URL, *layouts.Definition) error { fail(); return nil }
	}
	if r.deadLetters == nil {
		r.deadLetters = func(*config.Config) (store.DeadLetters, func(), error) { fail(); return nil, nil, nil }
	}
	if r.requests == nil {
		r.requests = func(*config.Config, string) (admin.Requests, func(), error) { fail(); return nil, nil, nil }
	}
	var stdout, stderr bytes.Buffer
	p.stdout, p.stderr, p.relay = &stdout, &stderr, r
	p.exit = func(code int) { t.Errorf("the process ended with %d", code) }
	if p.signals == nil {
		p.signals = make(chan os.Signal)
	}
	code := p.main(args)
	return result{code, stdout.String(), stderr.String()}
}

const good = `source: {url: "postgres://relay:canary@db/shop"}
flowcatalyst: {api-base-url: "https://platform", api-token: canary}
`

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsage(t *testing.T) {
	for args, help := range map[string]string{
		"": "sluicebox", "rum": "sluicebox", "run --colour": "sluicebox run", "run -c": "sluicebox run", "run extra": "sluicebox run",
		"config": "sluicebox config", "config chekc": "sluicebox config", "version -c x": "sluicebox version", "init --print=maybe": "sluicebox init",
		"deadletters lst": "sluicebox deadletters", "deadletters list --group": "sluicebox deadletters list", "deadletters list --limit=0": "sluicebox deadletters list",
	} {
		got := try(t, backend{}, nil, strings.Fields(args)...)
		if got.code != 64 || got.stdout != "" || !strings.HasPrefix(got.stderr, "sluicebox: ") || !strings.HasSuffix(got.stderr, "\n  see "+help+" --help\n") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	got := try(t, backend{}, nil, "--help")
	for _, word := range []string{"run", "init", "lanes retry-now", "deadletters requeue", "checkpoint create", "replay start", "replay errors", "config check", "config schema", "version"} {
		if got.code != 0 || !strings.Contains(got.stdout, word) {
			t.Errorf("--help: exit %d, no %q in %q", got.code, word, got.stdout)
		}
	}
	got = try(t, backend{}, nil, "run", "--help")
	if got.code != 0 || !strings.Contains(got.stdout, "$SLUICEBOX_CONFIG") {
		t.Errorf("run --help: exit %d, %q", got.code, got.stdout)
	}
}

func TestHelpCommand(t *testing.T) {
	for _, words := range [][]string{{}, {"run"}, {"deadletters"}, {"deadletters", "requeue"}, {"config", "check"}} {
		want := try(t, backend{}, nil, append(words, "--help")...)
		for _, args := range [][]string{append([]string{"help"}, words...), append([]string{"help", "help"}, words...), append(append([]string{"help"}, words...), "--help")} {
			if got := try(t, backend{}, nil, args...); got != want || got.code != 0 || got.stderr != "" {
				t.Errorf("%v: exit %d, stderr %q, stdout %q, want %q", args, got.code, got.stderr, got.stdout, want.stdout)
			}
		}
	}
	if got := try(t, backend{}, nil, "help", "rum"); got.code != 64 || !strings.Contains(got.stderr, "rum") {
		t.Errorf("help rum: exit %d, stderr %q", got.code, got.stderr)
	}
}

func TestConfigCheck(t *testing.T) {
	path := file(t, good)
	got := try(t, backend{}, nil, "config", "check", "-c", path)
	if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "url: postgres://relay:xxxxx@db/shop\n") || strings.Contains(got.stdout, "canary") {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	got = try(t, backend{}, []string{config.FileVariable + "=" + path, "SLUICEBOX_NAME=named"}, "config", "check", "--json")
	var shown struct {
		Name  string
		Sinks map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil {
		t.Fatalf("%v: %s", err, got.stdout)
	}
	if shown.Name != "named" || shown.Sinks["flowcatalyst"]["max-retries"] != 3.0 || strings.Contains(got.stdout, "canary") {
		t.Errorf("got %s", got.stdout)
	}
}

func TestConfigFiles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	etc := filepath.Join(t.TempDir(), "sluicebox.yaml")
	put := func(path, name string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(good+"name: "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := func(environ []string, args ...string) result {
		t.Helper()
		return tryWith(t, program{environ: environ, configFiles: []string{"./sluicebox.yaml", etc}}, args...)
	}
	want := "sluicebox: no configuration: -c FILE is missing; looked for $SLUICEBOX_CONFIG, ./sluicebox.yaml, " + etc + "\n"
	for _, args := range [][]string{
		{"run"}, {"init"}, {"status"}, {"tap"}, {"lanes", "list"}, {"deadletters", "list"}, {"deadletters", "requeue", "1"},
		{"checkpoint", "list"}, {"replay", "list"}, {"config", "check"},
	} {
		if got := command([]string{"SLUICEBOX_TEST_X=1"}, args...); got.code != 78 || got.stdout != "" || got.stderr != want {
			t.Errorf("%v: exit %d, stdout %q, stderr %q, want %q", args, got.code, got.stdout, got.stderr, want)
		}
	}
	if got := command(nil, "doctor"); got.code != 78 || !strings.Contains(got.stdout, "no configuration: -c FILE is missing") {
		t.Errorf("doctor: exit %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	named := file(t, good+"name: named\n")
	variables := []string{"SLUICEBOX_SOURCE_URL=postgres://relay@db/shop", "SLUICEBOX_FLOWCATALYST_API_BASE_URL=https://platform", "SLUICEBOX_NAME=variables"}
	expect := func(name string, environ []string, args ...string) {
		t.Helper()
		got := command(environ, append([]string{"config", "check"}, args...)...)
		if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "\nname: "+name+"\n") && !strings.HasPrefix(got.stdout, "name: "+name+"\n") {
			t.Errorf("exit %d, want the name %s in %q, stderr %q", got.code, name, got.stdout, got.stderr)
		}
	}
	expect("variables", variables)
	put(etc, "etc")
	expect("etc", nil)
	expect("variables", variables) // they override
	if err := os.Mkdir("sluicebox.yaml", 0o700); err != nil {
		t.Fatal(err)
	}
	expect("etc", nil)
	if err := os.Remove("sluicebox.yaml"); err != nil {
		t.Fatal(err)
	}
	put("sluicebox.yaml", "here")
	expect("here", nil)
	expect("named", nil, "-c", named)
	expect("named", []string{config.FileVariable + "=" + named})

	run := program{configFiles: []string{"./sluicebox.yaml", etc}, relay: backend{run: func(context.Context, app.Options) error { return nil }}}
	if got := tryWith(t, run, "run"); got.code != 0 || got.stdout != "" || !strings.Contains(got.stderr, `msg="configuration file found" file=./sluicebox.yaml`) {
		t.Errorf("run: exit %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	if got := tryWith(t, run, "run", "-c", named); got.code != 0 || got.stderr != "" {
		t.Errorf("run -c: exit %d, stderr %q", got.code, got.stderr)
	}
	if err := os.WriteFile("sluicebox.yaml", []byte("nam: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := command(nil, "run"); got.code != 78 || !strings.Contains(got.stderr, "./sluicebox.yaml:1: nam: unknown key") {
		t.Errorf("a faulty file: exit %d, %q", got.code, got.stderr)
	}
	if got := command(nil, "lanes", "list", "--admin=127.0.0.1:1"); got.code != 1 || !strings.Contains(got.stderr, "127.0.0.1:1") {
		t.Errorf("--admin needs no file: exit %d, %q", got.code, got.stderr)
	}
}

func TestConfigFaults(t *testing.T) {
	path := file(t, good+"nam: x\nlog: {level: loud}\n")
	for _, args := range [][]string{{"config", "check"}, {"run"}, {"init"}, {"init", "--print"}} {
		got := try(t, backend{}, nil, append(args, "-c", path)...)
		want := "sluicebox: the configuration has 2 faults:\n" +
			"  " + path + ":3: nam: unknown key; did you mean name?\n" +
			"  " + path + ":4: log.level: is \"loud\", must be one of debug, info, warn, error\n"
		if got.code != 78 || got.stdout != "" || got.stderr != want {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", args, got.code, got.stdout, got.stderr)
		}
	}
	got := try(t, backend{}, nil, "run", "-c", "/none/relay.yaml")
	if want := "sluicebox: /none/relay.yaml: cannot read the configuration file: no such file or directory\n"; got.code != 78 || got.stderr != want {
		t.Errorf("exit %d, %q", got.code, got.stderr)
	}
}

func TestConfigSchema(t *testing.T) {
	got := try(t, backend{}, nil, "config", "schema")
	if got.code != 0 || !json.Valid([]byte(got.stdout)) || !strings.Contains(got.stdout, config.SchemaID) {
		t.Errorf("exit %d, %q", got.code, got.stdout)
	}
}

func TestRunPassesTheConfigurationOn(t *testing.T) {
	var options app.Options
	r := backend{run: func(_ context.Context, o app.Options) error {
		options = o
		o.Log.Info("running", "url", o.Config.Settings.Source.URL)
		o.Log.Debug("unseen")
		return nil
	}}
	environ := []string{
		"SLUICEBOX_SOURCE_URL=postgres://relay:canary@db/shop",
		"SLUICEBOX_FLOWCATALYST_API_BASE_URL=https://platform",
		"SLUICEBOX_LOG_FORMAT=json",
	}
	got := try(t, r, environ, "run")
	if got.code != 0 || got.stdout != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	if options.Config.Settings.Name != "sluicebox" || options.Version == "" {
		t.Errorf("options are %+v", options)
	}
	var logged map[string]any
	if err := json.Unmarshal([]byte(got.stderr), &logged); err != nil || logged["url"] != "postgres://relay:xxxxx@db/shop" {
		t.Errorf("logged %s, %v", got.stderr, err)
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	p := program{stderr: &out}
	for _, tt := range []struct {
		log   config.Log
		lines int
	}{
		{config.Log{Level: "debug", Format: "text"}, 4}, {config.Log{Level: "info", Format: "json"}, 3},
		{config.Log{Level: "warn", Format: "text"}, 2}, {config.Log{Level: "error", Format: "json"}, 1},
	} {
		out.Reset()
		l := p.logger(tt.log)
		l.Debug("d")
		l.Info("i")
		l.Warn("w")
		l.Error("e")
		if n := strings.Count(out.String(), "\n"); n != tt.lines || strings.HasPrefix(out.String(), "{") != (tt.log.Format == "json") {
			t.Errorf("%+v logs %q", tt.log, out.String())
		}
	}
}

func TestInit(t *testing.T) {
	path := file(t, good)
	called := false
	r := backend{init: func(_ context.Context, c *config.Config, log *slog.Logger) error {
		called = true
		log.Info("made", "name", c.Settings.Name)
		return nil
	}}
	got := try(t, r, nil, "init", "-c", path)
	if got.code != 0 || !called || got.stdout != "" || !strings.Contains(got.stderr, "name=sluicebox") {
		t.Errorf("exit %d, called %t, stdout %q, stderr %q", got.code, called, got.stdout, got.stderr)
	}
	got = try(t, backend{script: func(c *config.Config) (string, error) {
		return "CREATE SCHEMA " + c.Settings.Name + ";\n\n", nil
	}}, nil, "init", "--print", "-c", path)
	if got.code != 0 || got.stdout != "CREATE SCHEMA sluicebox;\n" || got.stderr != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

// A source that fails does not keep init from the other ones.
func TestInitOfSources(t *testing.T) {
	var prepared []string
	r := backend{init: func(_ context.Context, c *config.Config, _ *slog.Logger) error {
		prepared = append(prepared, c.SourceName())
		if c.SourceName() == "b" {
			return nil
		}
		return &store.SetupError{Problem: "login refused", Remedy: "fix the password"}
	}}
	path := file(t, `sources: [{name: a, url: "postgres://relay@db/a"}, {name: b, url: "postgres://relay@db/b"}, {name: c, url: "postgres://relay@db/c"}]
outboxes: [{table: orders, layout: outbox-messages, sink: hooks}]
sinks: {hooks: {type: webhook, url: "https://hooks.example/rows"}}
`)
	got := try(t, r, nil, "init", "-c", path)
	const want = "sluicebox: source a: login refused\n  fix the password\nsluicebox: source c: login refused\n  fix the password\n"
	if got.code != 78 || got.stderr != want || !slices.Equal(prepared, []string{"a", "b", "c"}) {
		t.Errorf("exit %d, prepared %q\n%s\nwant\n%s", got.code, prepared, got.stderr, want)
	}
}

func TestExitCodes(t *testing.T) {
	path := file(t, good)
	setup := &store.SetupError{Problem: "the table outbox_events is not there", Remedy: "create it:\nCREATE TABLE …"}
	tests := []struct {
		name string
		err  error
		code int
		want string
	}{
		{"none", nil, 0, ""},
		{"failure", errors.New("the disk is full"), 1, "sluicebox: the disk is full\n"},
		{"setup", setup, 78, "sluicebox: the table outbox_events is not there\n  create it:\n  CREATE TABLE …\n"},
		{"wrapped", fmt.Errorf("check the tables: %w", setup), 78, "sluicebox: check the tables: the table outbox_events is not there\n  create it:\n  CREATE TABLE …\n"},
		{"without a remedy", &store.SetupError{Problem: "no"}, 78, "sluicebox: no\n"},
		{"joined", errors.Join(setup, &store.SetupError{Problem: "no grant", Remedy: "GRANT …"}), 78,
			"sluicebox: the table outbox_events is not there\n  create it:\n  CREATE TABLE …\nsluicebox: no grant\n  GRANT …\n"},
		{"joined with another", errors.Join(errors.New("lost"), setup), 78, "sluicebox: lost\nsluicebox: the table outbox_events is not there\n  create it:\n  CREATE TABLE …\n"},
		{"configuration", fmt.Errorf("late: %w", &config.Error{Problems: []config.Problem{{Key: "name", Text: "no"}}}), 78, "sluicebox: late: name: no\n"},
		{"cancelled without a signal", context.Canceled, 1, "sluicebox: context canceled\n"},
	}
	for _, tt := range tests {
		r := backend{run: func(context.Context, app.Options) error { return tt.err }}
		got := try(t, r, nil, "run", "-c", path)
		if got.code != tt.code || got.stderr != tt.want {
			t.Errorf("%s: exit %d, stderr %q; want %d, %q", tt.name, got.code, got.stderr, tt.code, tt.want)
		}
	}
}
