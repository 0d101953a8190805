package quickstart

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// TestConfigurationFile: special characters in URLs and folder names survive a round trip
// through the configuration file.
func TestConfigurationFile(t *testing.T) {
	for _, folder := range []string{"plain", "with a blank", "quote'd \"twice\"", "${env:HOME}", "#?%20&<>", "ünïcödé"} {
		dir := filepath.Join(t.TempDir(), folder)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		db, at := newSQLite(dir, demodb.NewName(namePrefix))
		path, cfg, err := writeConfig(dir, at, &destination{url: "http://127.0.0.1:1"})
		if err != nil {
			t.Fatalf("%s: %v", folder, err)
		}
		s := cfg.Settings
		if s.Name != at.name || s.Source.URL.Reveal() != at.url || s.Admin.Listen != "" || len(cfg.Outboxes()) != 1 ||
			cfg.Dispatch("flowcatalyst").Backoff.Max != 200*time.Millisecond || cfg.Dispatch("flowcatalyst").MaxRetries <= maxStrikes {
			t.Errorf("%s: the settings are %+v", folder, s)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file's mode is %v, %v", info.Mode(), err)
		}
		if _, err := db.setUp(t.Context()); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "quickstart.db")); err != nil {
			t.Error(err)
		}
		if err := db.cleanUp(t.Context(), false); err != nil {
			t.Error(err)
		}
	}
	_, at, err := newPostgres("postgres://u:p%24%7Bx%7D@db/shop?sslmode=disable&password=p%24&options=${y}", demodb.NewName(namePrefix))
	if err != nil {
		t.Fatal(err)
	}
	_, cfg, err := writeConfig(t.TempDir(), at, &destination{url: "http://127.0.0.1:1"})
	if err != nil || cfg.Settings.Source.URL.Reveal() != at.url || cfg.Outboxes()[0].Schema != at.name {
		t.Errorf("%+v, %v", cfg, err)
	}
	if strings.Contains(at.inspectCommand+at.removeCommand+at.description, "p%24") || !strings.Contains(at.inspectCommand, "postgres://u@db/shop?") {
		t.Errorf("the password shows, or the rest does not: %+v", at)
	}
}

// TestConfigurationFileOfMySQL: the configuration names the quickstart's own database
// instead of the URL's. The rest of the URL stays.
func TestConfigurationFileOfMySQL(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://u:p%24%7Bx%7D@db:3307/shop?tls=skip-verify": "mysql://u:p$%7Bx%7D@db:3307/NAME?tls=skip-verify",
		"mariadb://u:p%24@db/a%2Fb%25":                       "mariadb://u:p$@db/NAME",
		"mariadb://u:p%24@db":                                "mariadb://u:p$@db/NAME",
		"mysql://u:p%24@/x?socket=%2Frun%2Fs":                "mysql://u:p$@/NAME?socket=%2Frun%2Fs",
	} {
		_, at, err := newMySQL(raw, demodb.NewName(namePrefix))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		_, cfg, err := writeConfig(t.TempDir(), at, &destination{url: "http://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		outboxes := cfg.Outboxes()
		if got := cfg.Settings.Source.URL.Reveal(); got != strings.Replace(want, "NAME", at.name, 1) || len(outboxes) != 1 || outboxes[0].Table != "outbox_events" {
			t.Errorf("%s: the file has %s and %+v", raw, got, outboxes)
		}
		if strings.Contains(at.inspectCommand+at.removeCommand+at.description, "p$") || strings.Contains(at.inspectCommand+at.removeCommand+at.description, "p%24") {
			t.Errorf("the password shows: %+v", at)
		}
	}
	for _, raw := range []string{"mysql://canary:p%zz@db/x", "mysql://:canary@db/x", "mysql://u:canary@/x", "mysql://u:canary@db/x?tls=often"} {
		if _, _, err := newMySQL(raw, demodb.NewName(namePrefix)); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func mustParse(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestShellWords: a POSIX shell parses the quoted words back to the originals.
func TestShellWords(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	words := []string{"plain", "", "two words", "it's", "a'b'c", "$HOME `id` \\ \"x\"", "*", "postgres://u@h:1/d?sslmode=disable", "~", "a\nb"}
	out, err := exec.CommandContext(t.Context(), sh, "-c", `printf '%s\0' `+strings.Join(shellWords(words), " ")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); strings.Join(got, "|") != strings.Join(words, "|") {
		t.Errorf("got %q, want %q", got, words)
	}
}

func TestTail(t *testing.T) {
	var last tail
	line := strings.Repeat("x", 99) + "\n"
	for range 1000 {
		if n, err := last.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = last.Write([]byte("the end\n"))
	got := last.String()
	if len(got) > tailSize || len(got) < tailSize-200 || !strings.HasPrefix(got, line) || !strings.HasSuffix(got, line+"the end\n") {
		t.Errorf("%d bytes are kept, from %.20q on", len(got), got)
	}
}
