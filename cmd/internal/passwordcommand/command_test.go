package passwordcommand

import (
	"context"
	"strings"
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
		got, err := New("key", []string{"/bin/sh", "-c", c.script}).Password(t.Context())
		if got != c.password || (err == nil) != (c.problem == "") || err != nil && !strings.HasPrefix(err.Error(), c.problem) {
			t.Errorf("%s: got %q, %v, want %q, %s", c.script, got, err, c.password, c.problem)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows what it printed: %v", c.script, err)
		}
	}
	if _, err := New("key", []string{"/none/such"}).Password(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "key: ") {
		t.Errorf("a missing program: %v", err)
	}
}

// A program that hangs ends with the connection attempt.
func TestPasswordCommandHangs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := New("key", []string{"/bin/sh", "-c", "sleep 60"}).Password(ctx); err == nil || !strings.Contains(err.Error(), "no end within") {
		t.Errorf("got %v", err)
	}
}
