package blackbox

import (
	"slices"
	"testing"
)

// On MongoDB a replay reads the oplog again. Each document after the checkpoint arrives again,
// once and in order.
func TestMongoReplay(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		r := s.run()
		s.load(20)
		s.expectOnce()
		r.checkpoint("before", "--keep-log")
		s.load(100)
		s.expectOnce()
		was := s.to.Accepted()
		var want []string
		for _, got := range was[20:] {
			want = append(want, got.ID)
		}
		job := r.replay("--from=before")
		if job.code != 0 || job.Sent != 100 || job.Skipped+job.Refused+job.Remaining > 0 || job.Source != "log" {
			s.t.Errorf("the replay is %+v", job)
		}
		ids, twice := again(s.to.Accepted(), job.ID)
		slices.Sort(want)
		if sorted := slices.Sorted(slices.Values(ids)); !slices.Equal(sorted, want) || twice > 0 {
			s.t.Errorf("%d documents arrived, %d of them twice, want %d", len(ids), twice, len(want))
		}
		const group = 5 // characters before the number
		last := map[string]string{}
		for _, id := range ids {
			if id <= last[id[:group]] {
				s.t.Errorf("group %s: document %s arrived after %s", id[:group], id, last[id[:group]])
			}
			last[id[:group]] = id
		}
		dry := r.replay("--since=1h", "--dry-run", "--until="+job.UntilAt)
		if dry.code != 0 || dry.Sent > 0 || dry.Remaining < 100 {
			s.t.Errorf("the dry run is %+v", dry)
		}
		expectStop(s.t, r)
	})
}
