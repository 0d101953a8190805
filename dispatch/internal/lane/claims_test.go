package lane

import (
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/store"
)

// A request is divided among the lanes that can join it: those in front of another kind or job.
func TestTogether(t *testing.T) {
	job := &replay.Job{}
	lanes := func(kinds string) *Fifo[*Lane] {
		var q Fifo[*Lane]
		for _, kind := range kinds {
			l := &Lane{Name: Name{LaneKey: store.LaneKey{Kind: string(kind)}}}
			if kind == 'r' {
				l.Name.Kind, l.Job = "a", job
			}
			q.Push(l)
		}
		return &q
	}
	for _, c := range []struct {
		kinds      string
		most, want int
	}{
		{"a", 10, 1}, {"aaaa", 10, 4}, {"aaaa", 3, 3}, {"aaba", 10, 2}, {"aara", 10, 2}, {"rraa", 10, 2},
	} {
		if n := together(lanes(c.kinds), c.most); n != c.want {
			t.Errorf("%s, at most %d: got %d, want %d", c.kinds, c.most, n, c.want)
		}
	}
}
