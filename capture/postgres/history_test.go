package postgres

import (
	"testing"

	"github.com/jackc/pglogrepl"
)

func TestParseTimelineHistory(t *testing.T) {
	const file = "1\t0/3000148\tno recovery target specified\n\n# remark\n 3\t1A/40\tat restore point \"x\"\n"
	for was, want := range map[int32]pglogrepl.LSN{1: 0x3000148, 2: 0, 3: 0x1A_00000040, 4: 0} {
		if got, err := parseTimelineHistory([]byte(file), was); err != nil || got != want {
			t.Errorf("timeline %d: got branch point %s, error %v, want %s", was, got, err, want)
		}
	}
	for _, bad := range []string{"1\n", "x\t0/1\tr\n", "1\there\tr\n"} {
		if _, err := parseTimelineHistory([]byte(bad), 1); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestTimelineOfOrigin(t *testing.T) {
	for origin, want := range map[string]int32{
		"71/1/shop tables 16": 1, "71/12/a/b tables 16": 12, "71/x/shop": 0, "71/1": 0, "71": 0, "": 0, "71/99999999999/shop": 0,
	} {
		timeline, _, ok := splitTimeline(origin)
		if ok != (want != 0) || ok && timeline != want {
			t.Errorf("%q: got timeline %d, %t", origin, timeline, ok)
		}
	}
	_, a, _ := splitTimeline("71/1/a/b tables 16")
	if _, b, _ := splitTimeline("71/2/a/b tables 16"); a != b {
		t.Errorf("%q is not %q", a, b)
	}
	if _, b, _ := splitTimeline("72/1/a/b tables 16"); a == b {
		t.Errorf("origins of different servers compare equal")
	}
}
