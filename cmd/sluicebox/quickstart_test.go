package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
)

func TestQuickstartUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--rate 0":               "quickstart: --rate is 0, must be between 1 and 20000 rows a second",
		"--for=-1s --groups 0":   "quickstart: --for is -1s, must be between 100ms and 1h0m0s; --groups is 0, must be between 1 and 10000",
		"--fail-rate 2":          "quickstart: --fail-rate is 2, must be between 0 and 0.9: the share of requests that fail",
		"--source mongo://c@d/e": "quickstart: --source must begin with postgres://, mysql://, mariadb:// or mongodb://, such as postgres://user@host:port/database",
		"--rate many":            `--rate: expected a valid 64 bit int but got "many"`,
		"soon":                   "unexpected argument soon",
	} {
		got := try(t, backend{}, nil, append([]string{"quickstart"}, strings.Fields(args)...)...)
		if got.code != 64 || got.stdout != "" || !strings.HasPrefix(got.stderr, "sluicebox: "+want) {
			t.Errorf("%s: exit %d, %q; want %q", args, got.code, got.stderr, want)
		}
	}
}

// TestQuickstartStartsTheRelay checks that flags apply and that variables of another
// relay do not.
func TestQuickstartStartsTheRelay(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	enough := errors.New("that is enough")
	var options app.Options
	got := try(t, backend{run: func(_ context.Context, o app.Options) error {
		options = o
		return enough
	}}, []string{"SLUICEBOX_SOURCE_URL=postgres://production/shop"}, "quickstart", "--for", "1s", "--json")
	if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "sluicebox: relay ended: that is enough\n") {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	if s := options.Config.Settings; !strings.HasPrefix(s.Source.URL.Reveal(), "sqlite:///") || !strings.HasPrefix(s.Name, "sluicebox_quickstart_") {
		t.Errorf("the settings are %+v", s)
	}
	if options.Version == "" || options.Log == nil {
		t.Errorf("the options are %+v", options)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestTerminal(t *testing.T) {
	pipe, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close(); _ = end.Close() }()
	for name, tt := range map[string]struct {
		p    program
		want bool
	}{
		"none": {program{stderr: &strings.Builder{}}, false},
		"pipe": {program{stderr: end}, false},
		"dumb": {program{stderr: os.Stderr, environ: []string{"TERM=dumb"}}, false},
	} {
		if got := tt.p.stderrIsTerminal(); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err == nil {
		defer func() { _ = tty.Close() }()
		if p := (program{stderr: tty}); !p.stderrIsTerminal() {
			t.Error("a terminal is none")
		}
	}
}
