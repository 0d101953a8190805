package replay_test

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
)

// TestSpecText: ParseSpec reads what Text wrote.
func TestSpecText(t *testing.T) {
	s := &replay.Spec{Since: time.Unix(1e9, 0).UTC(), Groups: []string{"kunde-€ 😀"}}
	text, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	got, err := replay.ParseSpec(text)
	if err != nil || len(got.Groups) != 1 || got.Groups[0] != s.Groups[0] {
		t.Errorf("%s: got %+v, %v", text, got, err)
	}
}
