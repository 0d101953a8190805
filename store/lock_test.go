package store

import (
	"regexp"
	"strings"
	"testing"
)

func TestNewHolder(t *testing.T) {
	for name, want := range map[string]string{
		"":                       `^[0-9a-f]{8}$`,
		"db1 process 7":          `^db1 process 7#[0-9a-f]{8}$`,
		"größe\n":                `^gr\?\?e\?#[0-9a-f]{8}$`,
		strings.Repeat("é", 300): `^\?{200}#[0-9a-f]{8}$`,
	} {
		first, second := NewHolder(name), NewHolder(name)
		if !regexp.MustCompile(want).MatchString(first) {
			t.Errorf("%q becomes %q", name, first)
		}
		if first == second {
			t.Errorf("%q twice", first)
		}
	}
}
