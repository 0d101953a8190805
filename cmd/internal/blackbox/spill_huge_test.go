package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// One transaction has more rows than the buffer holds. They arrive in order, and memory stays
// small. By hand:
//
//	SLUICEBOX_TEST_ROWS=1000000 go test -v -run 'TestOneHugeTransaction' ./cmd/internal/blackbox
func TestOneHugeTransaction(t *testing.T) {
	t.Parallel()
	anOwnScene(t, servers.Spread(t, hosts()), nil, "", func(s *scene, _ ownServer) {
		rows := many(s.t, 50_000)
		r := s.run()
		s.number(1, rows, "i % 100")
		began := time.Now()
		s.expectNumbered(rows)
		s.t.Logf("%d rows in %s; %.0f were spilled", rows, time.Since(began).Round(time.Millisecond), r.metric(`sluicebox_rows_spilled_total{sink="flowcatalyst"}`))
		r.expectSmall()
		expectStop(s.t, r)
	})
}

// ordered is a receiver of events that keeps only their order.
type ordered struct {
	t     *testing.T
	mu    sync.Mutex
	last  map[string]string
	taken int
}

// ServeHTTP accepts a batch.
func (o *ordered) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	items := json.NewDecoder(req.Body)
	if _, err := items.Token(); err != nil { // the opening bracket
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	type event struct{ ID, Group string }
	var list []event
	for items.More() {
		var e event
		if err := items.Decode(&e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		list = append(list, e)
	}
	o.mu.Lock()
	for _, e := range list {
		if e.ID <= o.last[e.Group] {
			o.t.Errorf("group %s: row %s arrived after row %s", e.Group, e.ID, o.last[e.Group])
		}
		o.last[e.Group] = e.ID
	}
	o.taken += len(list)
	o.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
}

// One transaction has rows of 1 MB each, many times the relay's memory limit. By hand, with a
// hundredth of the number of rows:
//
//	SLUICEBOX_TEST_ROWS=1000000 go test -v -run 'TestOneTransactionOfHugeRows' ./cmd/internal/blackbox
func TestOneTransactionOfHugeRows(t *testing.T) {
	t.Parallel()
	anOwnScene(t, servers.Spread(t, hosts()), nil, "dispatch: {buffer-bytes: 16MiB}\n", func(s *scene, _ ownServer) {
		rows := many(s.t, 10_000) / 100
		to := &ordered{t: s.t, last: map[string]string{}}
		server := httptest.NewServer(to)
		defer server.Close()
		s.config = strings.Replace(s.config, s.to.URL(), server.URL, 1)
		r := s.run()
		began := time.Now()
		s.numberIn("outbox_events", 1, rows, "i % 10", 1_000_000)
		wrote := time.Now()
		awaitZero(s.t, fmt.Sprintf("of %d rows are not COMPLETED", rows), func() int {
			return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		s.t.Logf("%d rows of 1 MB, written in %s, delivered in %s more", rows, wrote.Sub(began).Round(time.Millisecond), time.Since(wrote).Round(time.Millisecond))
		if to.taken != rows {
			s.t.Errorf("%d rows arrived of %d", to.taken, rows)
		}
		r.expectSmall()
		expectStop(s.t, r)
	})
}

// A first start finds more unsettled rows than the buffer holds, with four active writers.
// Each group gets its existing rows in the order of created_at and id, then the later ones in
// commit order. None is missing or sent twice. By hand:
//
//	SLUICEBOX_TEST_ROWS=2000000 go test -v -run 'TestAFirstStartOverALargeBacklog' ./cmd/internal/blackbox
func TestAFirstStartOverALargeBacklog(t *testing.T) {
	t.Parallel()
	anOwnPostgres(t, nil, "", func(s *scene, _ *servers.Server) {
		rows := many(s.t, 30_000)
		// The id order differs from the created_at order, and ten rows share a created_at.
		if _, err := s.conn.exec(`INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
			SELECT id, 'EVENT', 'group-' || i % 1000 + 1, format('{"id": "%s"}', id), 'PENDING', born
			FROM (SELECT i, 'B' || lpad((i::bigint * 7919 % $1)::text, 12, '0') id, timestamp '2026-01-01' + (i / 10000) * interval '1 s' born
				FROM generate_series(0, $1 - 1) i) backlog`, rows); err != nil {
			s.t.Fatal(err)
		}
		if n := s.rows(); n != rows {
			s.t.Fatalf("%d rows were written, want %d", n, rows)
		}
		before := s.place()
		wait := write(s.t, s.database, load{seconds: 4 + rows/50_000, clients: 4, rate: 200, scripts: scriptsOfOwnGroups()})
		began := time.Now()
		r := start(s.t, s.config)
		r.waitForWithin(`msg="source connected"`, testTimeout+time.Duration(rows)*time.Millisecond)
		reading := time.Since(began)
		wait()
		all := s.rows()
		arrive(s.t, s.to, all)
		s.t.Logf("%d rows of before and %d beside: reading after %s, all arrived after %s", rows, all-rows, reading.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		settle(s.t, s.conn)
		s.expectBacklogFirst(before)
		if c := s.to.Counts(); c.Duplicates > 0 || c.Distinct != all {
			s.t.Errorf("%+v of %d rows", c, all)
		}
		s.expectNoneSpilled(r)
		r.expectSmall()
		expectStop(s.t, r)
	})
}

// place returns the position of each backlog row in its group.
func (s *scene) place() map[string]int {
	s.t.Helper()
	places := map[string]int{}
	err := s.conn.each("SELECT id, row_number() OVER (PARTITION BY message_group ORDER BY created_at, id) FROM outbox_events", nil, func(scan func(...any) error) error {
		var id string
		var n int
		err := scan(&id, &n)
		places[id] = n
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return places
}

// expectBacklogFirst expects the existing rows of each group first, in their order, and then
// the writers' rows, in commit order.
func (s *scene) expectBacklogFirst(before map[string]int) {
	s.t.Helper()
	groups := oracle{"EVENT", "events"}.groups(s.t, s.conn)
	last, size := map[string]int{}, map[string]int{}
	for id := range before {
		size[groups[id]]++
	}
	taken := s.to.Accepted()
	rest := taken[:0:0]
	for _, got := range taken {
		g := groups[got.ID]
		n, was := before[got.ID]
		switch {
		case got.Kind != "EVENT":
			rest = append(rest, got)
		case was && n != last[g]+1:
			s.t.Errorf("%s: row %s, the %dth of before, arrived after the %dth", g, got.ID, n, last[g])
		case !was && last[g] < size[g]:
			s.t.Errorf("%s: row %s arrived before the %dth row of before", g, got.ID, last[g]+1)
		case was:
			last[g] = n
		default:
			rest = append(rest, got)
		}
	}
	oracle{"EVENT", "events"}.checkOrder(s.t, s.conn, rest)
	oracle{"DISPATCH_JOB", "jobs"}.checkOrder(s.t, s.conn, rest)
}
