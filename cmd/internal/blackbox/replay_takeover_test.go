package blackbox

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A replay survives the relay that runs it. The next leader resumes it and sends only the rows
// in flight again.
func TestReplaySurvivesItsLeader(t *testing.T) {
	t.Parallel()
	const rows, window = 800, 50
	aScene(t, fmt.Sprintf("dispatch: {api-batch-size: 5, global-buffer-size: %d}\n", 4*window), func(s *scene) {
		r := s.run()
		r.checkpoint("begin", "--keep-log")
		s.number(1, rows, "i % 10")
		s.expectNumbered(rows)
		next := start(s.t, s.config)
		next.waitFor("standing by")
		var n atomic.Int32
		half, once, hang := make(chan struct{}), sync.Once{}, make(chan struct{})
		s.to.Script(func(req *sinktest.Request) sinktest.Answer {
			if req.Header.Get("Sluicebox-Replay") == "" || n.Add(int32(len(req.Items))) < rows/2 {
				return sinktest.Answer{}
			}
			once.Do(func() { close(half) })
			return sinktest.Answer{Release: hang}
		})
		id := next.detach("--from=begin")
		<-half
		r.kill()
		s.to.Script(nil)
		close(hang)
		job := next.untilDone(id)
		if job.Sent != rows || job.Skipped+job.Refused+job.Remaining > 0 {
			s.t.Errorf("the replay is %+v", job)
		}
		taken := s.to.Accepted()
		ids, twice := again(taken, id)
		if sorted := slices.Sorted(slices.Values(ids)); !slices.Equal(sorted, numbers(1, rows)) || twice > 3*window {
			s.t.Errorf("%d rows arrived, %d of them twice", len(ids), twice)
		}
		s.t.Logf("%d rows arrived twice", twice)
		last := map[string]string{}
		for _, row := range ids {
			if g := row[len(row)-1:]; row <= last[g] {
				s.t.Errorf("group %s: row %s arrived after row %s", g, row, last[g])
			} else {
				last[g] = row
			}
		}
		expectStop(s.t, next)
	})
}
