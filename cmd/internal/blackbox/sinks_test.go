package blackbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// twoSinks routes each FlowCatalyst table to a receiver of its own. The first sink's buffer
// holds fewer rows than the test writes for it.
const twoSinks = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: a}
  - {table: outbox_dispatch_jobs, layout: flowcatalyst, kind: DISPATCH_JOB, sink: b}
sinks:
  a: {type: flowcatalyst, api-base-url: %q, global-buffer-size: 500, request-timeout: 2s, backoff: {max: 1s}}
  b: {type: flowcatalyst, api-base-url: %q}
admin: {listen: %s}
`

// One of two receivers hangs, even with more waiting rows than its buffer holds. The other
// receives all of its rows meanwhile. The first receives its own in order once it recovers. By
// hand:
//
//	SLUICEBOX_TEST_OUTAGE=30s go test -v -run 'TestOneOfTwoSinksHangs' ./cmd/internal/blackbox
func TestOneOfTwoSinksHangs(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		a, b := s.to, sinktest.NewReceiver(s.t)
		r := start(s.t, fmt.Sprintf(twoSinks, nameFor(s.database), s.database, a.URL(), b.URL(), adminKey))
		r.waitFor("source connected")
		phase := lasting(s.t, 3*time.Second)
		jobs := pace{conn: connect(s.t, s.database), to: b, table: "outbox_dispatch_jobs", groups: 50}

		p50, p99 := jobs.run(s.t, phase)
		s.t.Logf("both respond:          p50 %s, p99 %s", p50, p99)
		hang := make(chan struct{})
		a.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Release: hang, Disconnect: true} })
		s.number(1, 100, "i % 50")
		p50, p99 = jobs.run(s.t, phase)
		s.t.Logf("one hangs:             p50 %s, p99 %s", p50, p99)
		const rows = 2000
		s.number(101, rows, "i % 50")
		p50, p99 = jobs.run(s.t, phase)
		s.t.Logf("and its buffer is full: p50 %s, p99 %s", p50, p99)
		memory, parked := r.metric(`sluicebox_pending_rows{sink="a"}`), r.metric(`sluicebox_spilled_rows{sink="a"}`)
		if memory > 2*500 || memory+parked < rows {
			s.t.Errorf("%.0f rows of the hanging sink are in memory and %.0f are spilled, want at most twice the buffer and all %d", memory, parked, rows)
		}
		if c := a.Counts(); c.Distinct > 0 {
			s.t.Fatalf("the hanging sink accepted %d rows, want 0", c.Distinct)
		}
		if status, body := r.get("/readyz?verbose"); status == 200 {
			s.t.Errorf("/readyz says: %s", body)
		}

		a.Script(nil)
		close(hang)
		s.expectNumbered(rows)
		if c := b.Counts(); c.Distinct != jobs.written || c.Duplicates > 0 {
			s.t.Errorf("the other one got %+v of %d rows", c, jobs.written)
		}
		checkNumbered(s.t, b.Accepted())
		expectStop(s.t, r)
	})
}

// pace writes 300 rows per second into a table, one per transaction, and measures the time until
// the receiver has read them.
type pace struct {
	conn    *conn
	to      *sinktest.Receiver
	table   string
	first   int // number of the first row, minus one
	groups  int
	written int
}

// run writes for a while, waits until all rows have arrived, and returns the median and the 99th
// percentile of the time from commit to receipt. The receiver must get no other rows
// meanwhile.
func (p *pace) run(t testing.TB, lasts time.Duration) (p50, p99 time.Duration) {
	t.Helper()
	const rate = 300
	insert := "INSERT INTO " + p.table + " (id, type, message_group, payload, status, created_at) VALUES ($1, 'EVENT', $2, $3, 'PENDING', now())"
	committed, before := map[string]time.Time{}, p.to.Counts().Distinct
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for range int(lasts.Seconds() * rate) {
		<-tick.C
		p.written++
		id, group := numbered(p.first+p.written), fmt.Sprint(p.written%p.groups)
		if _, err := p.conn.exec(insert, id, group, fmt.Sprintf(`{"id": %q, "group": %q}`, id, group)); err != nil {
			t.Fatal(err)
		}
		committed[id] = time.Now()
	}
	arrive(t, p.to, before+len(committed))
	return quantiles(committed, p.to.Accepted())
}

// quantiles returns the median and the 99th percentile of the times from commit to receipt, of
// rows with a known commit.
func quantiles(committed map[string]time.Time, taken []sinktest.Received) (p50, p99 time.Duration) {
	var took []time.Duration
	for _, r := range taken {
		if at, ok := committed[r.ID]; ok {
			took = append(took, max(0, r.At.Sub(at)))
		}
	}
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Microsecond) }
	return at(.5), at(.99)
}
