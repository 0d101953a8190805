package blackbox

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/raced"
)

// buildEmbed builds testdata/embed, a module of its own, without a network. The copy has
// this module's go.sum, because the program needs no other modules.
func buildEmbed(t *testing.T) (program string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/embed")); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "embed")
	for _, args := range [][]string{
		{"mod", "edit", "-replace", "github.com/sluicebox/sluicebox=" + root}, {"build", fmt.Sprintf("-race=%t", raced.Enabled), fmt.Sprintf("-trimpath=%t", !raced.Enabled), "-o", program, "."},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return program
}

// A program of another module embeds a relay: its rows are delivered and become COMPLETED,
// and it ends cleanly on a signal.
func TestEmbeddedRelay(t *testing.T) {
	t.Parallel()
	program := buildEmbed(t)
	file := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(t.Context(), `CREATE TABLE outbox_events (id TEXT PRIMARY KEY, message_group TEXT, payload TEXT NOT NULL,
		status TEXT NOT NULL DEFAULT 'PENDING', retry_count INT NOT NULL DEFAULT 0,
		created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, processed_at TIMESTAMP, error_message TEXT)`)
	if err != nil {
		t.Fatal(err)
	}

	var stdout, stderr strings.Builder
	relay := exec.CommandContext(t.Context(), program, file)
	relay.Stdout, relay.Stderr = &stdout, &stderr
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	const rows = 100
	for i := range rows {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO outbox_events (id, message_group, payload) VALUES (?, ?, '{}')", fmt.Sprint(i), fmt.Sprint(i%5)); err != nil {
			t.Fatal(err)
		}
	}
	within(t, time.Minute, func() string {
		var completed int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events WHERE status = 'COMPLETED'").Scan(&completed); err != nil || completed < rows {
			return fmt.Sprintf("%d of %d rows are COMPLETED (%v)", completed, rows, err)
		}
		return ""
	})
	if err := relay.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := relay.Wait(); err != nil {
		t.Fatalf("the program ends with %v:\n%s", err, stderr.String())
	}
	if got := strings.Count(stdout.String(), "\n"); got != rows {
		t.Errorf("%d rows were delivered, want %d", got, rows)
	}
}
