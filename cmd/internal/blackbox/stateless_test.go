package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// statelessConfig relays a project's table with a small buffer and frequent sweeps.
const statelessConfig = `
name: %s
source: {mode: stream, url: %q, poll-interval: 50ms}
outboxes: [{table: %s, layout: %s, sink: hooks}]
sinks:
  hooks: {type: webhook, url: %q, max-retries: 1, backoff: {initial: 50ms, max: 500ms}, proof-wait: 1s, buffer-bytes: 256KiB}
checkpoint: {sweep-interval: 200ms}
admin: {listen: %s}
`

// prepare creates the table and a receiver, and returns the configuration.
func (s *layoutScene) prepare(script sinktest.Script) string {
	s.t.Helper()
	initOutbox(s.t, s.layout, s.source)
	s.to = sinktest.NewReceiver(s.t)
	s.to.Script(script)
	return fmt.Sprintf(statelessConfig, nameFor(s.source), s.source, s.table, s.layout, s.to.URL(), adminKey)
}

// put commits one row.
func (s *layoutScene) put(r *layoutRow) {
	s.t.Helper()
	if err := s.commit([]*layoutRow{r}); err != nil {
		s.t.Fatal(err)
	}
}

func rowIn(r *sinktest.Request) (row layoutRow) {
	_ = json.Unmarshal(r.Body, &row) // the test compares what arrives
	return row
}

// The service deletes each row in the transaction that inserts it, the payloads of one dead
// group exceed buffer-bytes, and the relay is killed. All rows arrive, in order per group, and
// again only those that were delivered in the last seconds: the dead group does not hold the
// checkpoint.
func TestDeletedRowsBesideADeadGroup(t *testing.T) {
	t.Parallel()
	for _, payload := range []int{16, 8 << 10} { // the dead group fits into the buffer, or not
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			t.Parallel()
			killBesideADeadGroup(t, payload)
		})
	}
}

func killBesideADeadGroup(t *testing.T, payload int) {
	t.Helper()
	onLayoutHosts(t, debeziumCase(true), func(s *layoutScene) {
		var dead atomic.Bool
		dead.Store(true)
		config := s.prepare(func(r *sinktest.Request) sinktest.Answer {
			if row := rowIn(r); row.Group == 1 && dead.Load() {
				return sinktest.Answer{Status: http.StatusServiceUnavailable}
			}
			return sinktest.Answer{Status: http.StatusNoContent}
		})
		r := start(s.t, config)
		r.waitFor("source connected")
		const groups = 4
		pad, alive, n := strings.Repeat("x", payload), 0, 0
		write := func() {
			row := &layoutRow{Group: n%groups + 1, N: n/groups + 1, Pad: pad}
			if n++; row.Group != 1 {
				alive++
			}
			s.put(row)
		}
		for n < 400 { // 100 rows of the dead group are 800 KiB
			write()
		}
		arrive(s.t, s.to, alive)
		// A second for the dead lane before the last row. A loaded machine delays the two looks of
		// the relay, and its commits that spill the rows and save the checkpoint, as it delays a
		// commit of this test.
		bound := time.Second
		rate := time.NewTicker(5 * time.Millisecond)
		defer rate.Stop()
		for began := time.Now(); time.Since(began) < 5*bound; { // the checkpoint passes these rows
			<-rate.C
			one := time.Now()
			write()
			bound = max(bound, time.Second+4*time.Since(one))
		}
		arrive(s.t, s.to, alive)
		r.kill()

		accepted := s.to.Accepted()
		last := slices.MaxFunc(accepted, func(a, b sinktest.Received) int { return a.At.Compare(b.At) }).At
		recent := 0
		for _, got := range accepted {
			if last.Sub(got.At) <= bound {
				recent++
			}
		}
		if recent > len(accepted)*2/3 {
			s.t.Fatalf("%d of %d rows arrived within %s: the bound shows nothing", recent, len(accepted), bound)
		}
		dead.Store(false)
		r = start(s.t, config)
		arrive(s.t, s.to, n)
		again := s.checkOrder()
		s.t.Logf("%d rows, %d of them delivered before the kill, %d within %s; %d arrived again", n, len(accepted), recent, bound, again)
		if again > recent {
			s.t.Errorf("%d rows arrived again, want at most the %d of the last %s", again, recent, bound)
		}
		expectStop(s.t, r)
	})
}

// letterIDs returns the dead letters that the command lists from the database.
func (s *layoutScene) letterIDs(config string) (ids []string) {
	s.t.Helper()
	stdout, stderr, code := command(s.t, nil, "deadletters", "list", "--json", "-c", configFile(s.t, config))
	var list struct {
		DeadLetters []struct {
			ID string
		}
	}
	text := strings.ReplaceAll(stdout, `"dead_letters"`, `"DeadLetters"`)
	if err := json.Unmarshal([]byte(text), &list); code != 0 || err != nil {
		s.t.Fatalf("deadletters list: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	for _, d := range list.DeadLetters {
		ids = append(ids, d.ID)
	}
	return ids
}

// A row FAILED although its table has no place for that. The dead letters list it, also
// without a running relay, and no sweep, restart or poll sends it again. It can be requeued,
// with its content, and discarded.
func TestFailedRowsWithoutAState(t *testing.T) {
	t.Parallel()
	for _, c := range []*layoutCase{eventuateCase(), debeziumCase(true)} {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			onLayoutHosts(t, c, func(s *layoutScene) {
				var refuses atomic.Bool
				var attempts atomic.Int64
				var ids [3]atomic.Pointer[string] // of the bad rows, by group
				refuses.Store(true)
				config := s.prepare(func(r *sinktest.Request) sinktest.Answer {
					if row := rowIn(r); row.Bad {
						ids[row.Group].Store(&r.Items[0].ID)
						if attempts.Add(1); refuses.Load() {
							return sinktest.Answer{Status: http.StatusUnprocessableEntity, Body: []byte("no such customer")}
						}
					}
					return sinktest.Answer{Status: http.StatusNoContent}
				})
				r := start(s.t, config)
				r.waitFor("source connected")
				s.put(&layoutRow{Group: 1, N: 1, Bad: true})
				n := 1
				follow := func(rows int) { // rows that sweeps and polls run beside
					s.t.Helper()
					for range rows {
						n++
						s.put(&layoutRow{Group: 1, N: n})
						arrive(s.t, s.to, n-1)
					}
				}
				follow(1)
				failed, first := attempts.Load(), *ids[1].Load()
				if got := s.letterIDs(config); !slices.Equal(got, []string{first}) {
					s.t.Errorf("dead letters are %q, want %q", got, first)
				}
				sweeps := func() {
					s.t.Helper()
					for began := time.Now(); time.Since(began) < 2*time.Second; {
						follow(1)
					}
				}
				sweeps()
				r.kill()
				if got := s.letterIDs(config); !slices.Equal(got, []string{first}) {
					s.t.Errorf("dead letters of no running relay are %q, want %q", got, first)
				}
				r = start(s.t, config)
				sweeps()
				if !s.stateless {
					expectStop(s.t, r)
					r = start(s.t, strings.Replace(config, "mode: stream", "mode: poll", 1))
					sweeps()
					expectStop(s.t, r)
					r = start(s.t, config)
				}
				if got := attempts.Load(); got != failed {
					s.t.Errorf("the FAILED row was sent %d times more", got-failed)
				}

				s.put(&layoutRow{Group: 2, N: 1, Bad: true})
				within(s.t, testTimeout, func() string {
					if got := s.letterIDs(config); len(got) != 2 {
						return fmt.Sprintf("dead letters are %q, want two", got)
					}
					return ""
				})
				second := *ids[2].Load()
				refuses.Store(false)
				r.operate("deadletters", "requeue", "--outbox", s.table, "--yes", first)
				arrive(s.t, s.to, n)
				r.operate("deadletters", "discard", "--outbox", s.table, "--yes", second)
				r.kill()
				r = start(s.t, config)
				sweeps()
				if got := s.letterIDs(config); len(got) != 0 {
					s.t.Errorf("dead letters are %q, want none", got)
				}
				for _, got := range s.to.Accepted() {
					if got.ID == second {
						s.t.Errorf("the discarded row arrived")
					}
				}
				expectStop(s.t, r)
			})
		})
	}
}

// A slow group has a backlog when the relay is stopped cleanly, and the other groups have gone
// on. No row arrives twice after the restart: the checkpoint passes all that was delivered.
func TestCleanStopBesideASlowGroup(t *testing.T) {
	t.Parallel()
	onLayoutHosts(t, debeziumCase(true), func(s *layoutScene) {
		var slow atomic.Bool
		slow.Store(true)
		config := s.prepare(func(r *sinktest.Request) sinktest.Answer {
			a := sinktest.Answer{Status: http.StatusNoContent}
			if rowIn(r).Group == 1 && slow.Load() {
				a.Delay = time.Second
			}
			return a
		})
		r := start(s.t, config)
		r.waitFor("source connected")
		const groups, each = 4, 100
		for n := range groups * each {
			s.put(&layoutRow{Group: n%groups + 1, N: n/groups + 1})
		}
		arrive(s.t, s.to, (groups-1)*each) // some of them of the slow group
		expectStop(s.t, r)
		delivered := len(s.to.Accepted())
		if delivered > (groups-1)*each+each/2 {
			s.t.Fatalf("%d of %d rows were delivered before the stop: the group is not slow", delivered, groups*each)
		}
		slow.Store(false)
		r = start(s.t, config)
		arrive(s.t, s.to, groups*each)
		expectStop(s.t, r)
		if again := s.checkOrder(); again != 0 {
			s.t.Errorf("%d of the %d rows delivered before a clean stop arrived again", again, delivered)
		}
	})
}
