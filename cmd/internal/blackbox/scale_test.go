package blackbox

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const (
	scalePartitions = 8
	scaleGroups     = 40
	// scaleSession is how long a process may be silent. The broker of the test allows it.
	scaleSession = 2 * time.Second
)

// scaleFleet is two processes that share an outbox with a topic between, its writer and its receiver.
type scaleFleet struct {
	t        *testing.T
	database string
	url      string
	table    scaleTable
	config   string
	relays   [2]*relay
	pause    time.Duration // between transactions
	delay    time.Duration // of each answer

	refuses atomic.Bool // the receiver refuses every row

	mu      sync.Mutex
	last    map[int]int // by group, of the first arrivals
	seen    map[[2]int]bool
	repeats int
	wrong   []string
	from    map[string]int // arrivals by the path of the URL
	commits map[int]time.Time
	first   []scaleArrival
	no      string // a path from which nothing may arrive
}

// scaleArrival is the first arrival of a row, from a path.
type scaleArrival struct {
	path     string
	group, n int
	at       time.Time
}

var scaleRow = regexp.MustCompile(`"g":(\d+),"n":(\d+)`)

func newScaleFleet(t *testing.T, database string) *scaleFleet {
	t.Helper()
	cluster := servers.Kafka(t, 1, map[string]string{"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"})
	s := &scaleFleet{t: t, database: database, pause: 20 * time.Millisecond, last: map[int]int{}, seen: map[[2]int]bool{}, from: map[string]int{}, commits: map[int]time.Time{}}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if s.refuses.Load() {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		time.Sleep(s.delay) // a slow receiver
		for _, found := range scaleRow.FindAllStringSubmatch(string(body), -1) {
			group, _ := strconv.Atoi(found[1])
			n, _ := strconv.Atoi(found[2])
			s.arrived(r.URL.Path, group, n)
		}
	}))
	t.Cleanup(receiver.Close)
	var url string
	url, s.table = scaleDatabase(t, database)
	s.url = url
	if out, errs, code := command(t, nil, "init", "--outbox", "outbox-messages", "--table", "letters", "--source", url, "--apply"); code != 0 {
		t.Fatalf("init: %s%s", out, errs)
	}
	s.config = fmt.Sprintf(`name: %s
source: {url: %q}
admin: {listen: %s}
scale: {engine: kafka, brokers: [%q], topic: shop, partitions: %d, session-timeout: %s}
dispatch: {request-timeout: 5s}
checkpoint: {sweep-interval: 2s}
outboxes: [{table: letters, layout: outbox-messages, sink: all}]
sinks: {all: {type: webhook, url: %q}}
`, nameFor(url), url, adminKey, cluster.Addresses()[0], scalePartitions, scaleSession, receiver.URL)
	initTopic(t, s.config)
	return s
}

// initTopic creates the topic of a configuration with scale.
func initTopic(t *testing.T, config string) {
	t.Helper()
	file := t.TempDir() + "/init.yaml"
	if err := os.WriteFile(file, []byte(strings.Replace(config, adminKey, "''", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := command(t, nil, "init", "-c", file); code != 0 || !strings.Contains(errs, "topic created") {
		t.Fatalf("init exits with %d: %s", code, errs)
	}
}

// arrived records an arrival. The first arrivals of a group must be in the order of its commits.
func (s *scaleFleet) arrived(path string, group, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from[path]++
	if path == s.no {
		s.wrong = append(s.wrong, fmt.Sprintf("group %d: row %d arrives from %s, which must not send yet", group, n, path))
	}
	switch {
	case s.seen[[2]int{group, n}]:
		s.repeats++
		return
	case n < s.last[group]:
		s.wrong = append(s.wrong, fmt.Sprintf("group %d: row %d first arrives after %d", group, n, s.last[group]))
	}
	s.seen[[2]int{group, n}] = true
	s.first = append(s.first, scaleArrival{path, group, n, time.Now()})
	s.last[group] = max(n, s.last[group])
}

// write inserts rows until stop is called, which returns their number. A transaction has a row of each
// group.
func (s *scaleFleet) write() (stop func() int) {
	end, done := make(chan struct{}), make(chan int)
	go func() {
		rows := 0
		defer func() { done <- rows }()
		for n := 1; ; n++ {
			var all []scaleKey
			for g := range scaleGroups {
				all = append(all, scaleKey{g, n})
			}
			if err := s.table.insert(all); err != nil {
				s.t.Error(err)
				return
			}
			rows += scaleGroups
			s.mu.Lock()
			s.commits[n] = time.Now()
			s.mu.Unlock()
			select {
			case <-end:
				return
			case <-time.After(s.pause):
			}
		}
	}()
	return func() int { close(end); return <-done }
}

// start starts a relay and waits for its endpoints.
func (s *scaleFleet) start(i int) {
	s.relays[i] = start(s.t, s.config)
	s.relays[i].waitFor("shards assigned")
}

// unequal says which relay lacks its equal share of all shards; "" if each has it.
func unequal(all ...*relay) string {
	for i, r := range all {
		if n := r.metric("sluicebox_scale_shards"); n != float64(scalePartitions/len(all)) {
			return fmt.Sprintf("relay %d of %d has %v of %d shards", i, len(all), n, scalePartitions)
		}
	}
	return ""
}

// captures returns the relay that captures and the other one, once both have their share of the shards.
func (s *scaleFleet) captures() (captures, other int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		if text := unequal(s.relays[:]...); text != "" {
			return text
		}
		for i, r := range s.relays {
			if r.metric("sluicebox_scale_captures") == 1 {
				captures, other = i, 1-i
				return ""
			}
		}
		return "no relay captures"
	})
	return captures, other
}

// hasAll waits until a relay has every shard, and all of them work.
func (s *scaleFleet) hasAll(i int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		if n := leads(s.relays[i]); n < scalePartitions {
			return fmt.Sprintf("%d of %d shards work: %s", n, scalePartitions, unequal(s.relays[i]))
		}
		return unequal(s.relays[i])
	})
}

// settled waits until all rows have arrived and are COMPLETED.
func (s *scaleFleet) settled(rows int) {
	s.t.Helper()
	awaitZero(s.t, fmt.Sprintf("rows of %d have not arrived", rows), func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return rows - len(s.seen)
	})
	awaitZero(s.t, "rows that are not COMPLETED", func() int { return s.table.open(s.t) })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.wrong {
		s.t.Error(text)
	}
	s.t.Logf("%d rows, %d repeats", rows, s.repeats)
}

// expectDoctor waits until doctor says all of that.
func (s *scaleFleet) expectDoctor(texts ...string) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		out, errs, _ := s.relays[0].sluicebox("doctor")
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Sprintf("doctor does not say %q:\n%s%s", text, out, errs)
			}
		}
		return ""
	})
}

// Two processes share an outbox. Whichever of them is killed or frozen, no row is lost and the rows of a
// group first arrive in order. SLUICEBOX_TEST_CRASHES replaces the number of rounds; 20 is a full run.
func TestScaleFaults(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, s *scaleFleet) {
		for i := range s.relays {
			s.start(i)
		}
		s.captures()
		stop := s.write()
		s.expectDoctor("the 8 shards of topic shop", "the topic gets records", "processes with role dispatch: 2", "records behind")
		for range crashes(t, 1) {
			for _, victim := range []func() int{
				func() int { i, _ := s.captures(); return i },
				func() int { _, i := s.captures(); return i },
			} {
				i := victim()
				s.relays[i].kill()
				s.hasAll(1 - i)
				s.start(i)
				i = victim()
				s.relays[i].freeze()
				s.hasAll(1 - i)
				s.relays[i].thaw()
			}
		}
		s.captures()
		rows := stop()
		s.settled(rows)
		if most := rows / 5; s.repeats > most {
			t.Errorf("%d rows of %d arrived again, want %d at most", s.repeats, rows, most)
		}
		for _, r := range s.relays {
			expectStop(t, r)
		}
	})
}
