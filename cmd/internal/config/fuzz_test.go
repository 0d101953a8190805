package config

import (
	"errors"
	"os"
	"testing"
)

// FuzzParse checks that every file yields a configuration that can be printed, or an
// *Error, but no panic.
func FuzzParse(f *testing.F) {
	for _, file := range []string{"testdata/complete.yaml", "testdata/outboxes.yaml", "testdata/custom.yaml", "testdata/documents.yaml", "testdata/routes.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "max")
	}
	for _, text := range []string{
		"", "a", "- a", "name: ${", "outboxes: [*a]", "a: &a [*a]", "<<: {a: b}", "sinks: {? [a] : b}",
		"outboxes: &a [*a]", "sinks: &s {a: *s}", "name: !!binary aa==", "{", "---\n---", "\xff\xfe", "outboxes: [{}, [], 1]",
	} {
		f.Add([]byte(text), text)
	}
	noFiles := func(string) ([]byte, error) { return []byte("text\n"), nil }
	f.Fuzz(func(t *testing.T, data []byte, value string) {
		environ := []string{"A=b", "SLUICEBOX_SINKS=" + value, "SLUICEBOX_DISPATCH_PROOF_WAIT=" + value, "SLUICEBOX_SOURCE_URL=" + value}
		for _, env := range [][]string{nil, environ} {
			cfg, err := parse("fuzz.yaml", data, env, noFiles)
			var e *Error
			switch {
			case err == nil:
				if _, err := cfg.YAML(); err != nil {
					t.Errorf("cannot be printed: %v", err)
				}
			case !errors.As(err, &e) || len(e.Problems) == 0:
				t.Errorf("got %T %v, want an *Error with problems", err, err)
			}
		}
	})
}
