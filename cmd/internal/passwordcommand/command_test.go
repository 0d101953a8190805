//go:build unix

package passwordcommand

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The output is the password without its line break. Errors name the key, and nothing that the program
// printed or was given.
func TestPassword(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ script, password, problem string }{
		{"echo token", "token", ""},
		{"printf ' two words \\r\\n'", " two words ", ""},
		{"echo secret; echo secret >&2; exit 3", "", "key: exit status 3"},
		{"true", "", "key: prints nothing"},
		{"yes secret | head -c 70000", "", "key: prints more than 65536 bytes"},
	} {
		got, err := NewLimit().Command("key", []string{"/bin/sh", "-c", c.script}).Password(t.Context())
		if got != c.password || (err == nil) != (c.problem == "") || err != nil && !strings.HasPrefix(err.Error(), c.problem) {
			t.Errorf("%s: got %q, %v, want %q, %s", c.script, got, err, c.password, c.problem)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows what it printed: %v", c.script, err)
		}
	}
	if _, err := NewLimit().Command("key", []string{"/none/such"}).Password(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "key: ") {
		t.Errorf("a missing program: %v", err)
	}
}

// A program that hangs ends with the connection attempt, and so do its children. The error is that of
// the attempt.
func TestPasswordCommandHangs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "child")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := make(chan error, 1)
	go func() { // opens once the child has the other end, and reads its end once the child is killed
		defer cancel()
		of, err := os.Open(file)
		if err == nil {
			cancel()
			_, err = io.ReadAll(of)
			_ = of.Close()
		}
		held <- err
	}()
	_, err := NewLimit().Command("key", []string{"/bin/sh", "-c", `sleep 600 >"$0" & wait`, file}).Password(ctx)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "no end within") {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-held:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the child lives")
	}
}

// The program does not see the variables of the relay.
func TestPasswordCommandVariables(t *testing.T) {
	t.Setenv("SLUICEBOX_SINKS_A_TOKEN", "secret")
	t.Setenv("PASSWORD_OF_TEST", "word")
	got, err := NewLimit().Command("key", []string{"/bin/sh", "-c", `echo "$SLUICEBOX_SINKS_A_TOKEN$PASSWORD_OF_TEST"`}).Password(t.Context())
	if err != nil || got != "word" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A program waits for those that run.
func TestPasswordCommandsAreFew(t *testing.T) {
	t.Parallel()
	l := NewLimit()
	if err := l.runs.Acquire(t.Context(), parallel); err != nil {
		t.Fatal(err)
	}
	c := l.Command("key", []string{"/bin/echo", "token"})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Password(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a full limit: %v", err)
	}
	l.runs.Release(1)
	if got, err := c.Password(t.Context()); err != nil || got != "token" {
		t.Errorf("got %q, %v", got, err)
	}
}
