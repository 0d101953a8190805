package replay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
)

// TestSpecTextIsASCII: a spec is stored in databases of any encoding.
func TestSpecTextIsASCII(t *testing.T) {
	s := &replay.Spec{Since: time.Unix(1e9, 0).UTC(), Groups: []string{"kunde-€ 😀"}}
	text, err := s.Text()
	if err != nil || strings.IndexFunc(text, func(r rune) bool { return r > '~' }) >= 0 {
		t.Errorf("got text %q, %v", text, err)
	}
	got, err := replay.ParseSpec(text)
	if err != nil || len(got.Groups) != 1 || got.Groups[0] != s.Groups[0] {
		t.Errorf("%s: got %+v, %v", text, got, err)
	}
}
