package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// routesConfig relays a project's table to several receivers.
const routesConfig = `
name: %s
source: {mode: %s, url: %q, poll-interval: 50ms}
outboxes: [{table: %s, layout: %s, routes: [%s]}]
sinks:
%scheckpoint: {sweep-interval: 1s}
admin: {listen: %s}
`

// routeSink is a sink of routesConfig.
const routeSink = "  %s: {type: webhook, url: %q, max-retries: 1, backoff: {initial: 50ms, max: 200ms}, proof-wait: 1s}\n"

// routesScene is a table whose rows have three destinations.
type routesScene struct {
	*layoutScene
	config string
	to     map[string]*routeReceiver
	ends   sync.Map     // by payload: a position at or behind the end of its transaction
	wrote  atomic.Int64 // how long writeRows took, in nanoseconds
	// late are the last rows that writeRows writes, a few for each: they wait until it is closed.
	late []chan struct{}
}

// routeReceiver is the receiver of a route.
type routeReceiver struct {
	*sinktest.Receiver
	dead atomic.Bool                   // it answers 503
	bad  atomic.Pointer[string]        // the payload that it refuses for good
	held atomic.Pointer[chan struct{}] // it answers no request until this is closed
}

func (r *routeReceiver) answer(req *sinktest.Request) sinktest.Answer {
	switch bad := r.bad.Load(); {
	case r.dead.Load():
		return sinktest.Answer{Status: http.StatusServiceUnavailable}
	case bad != nil && string(req.Body) == *bad:
		return sinktest.Answer{Status: http.StatusUnprocessableEntity, Body: []byte("no such customer")}
	}
	answer := sinktest.Answer{Status: http.StatusNoContent, Delay: 2 * time.Millisecond}
	if held := r.held.Load(); held != nil {
		answer.Release = *held
	}
	return answer
}

// onRoutes runs a test on a table with the states NEW, COMPLETED and FAILED, on each kind of database.
func onRoutes(t *testing.T, mode string, run func(s *routesScene)) {
	t.Helper()
	t.Parallel()
	onLayoutHosts(t, namastackCase(), func(l *layoutScene) {
		if mode == "poll" && l.db == nil && !l.conn.kind.postgres {
			l.t.Skip("now() has whole seconds, by which polling cannot order rows")
		}
		run(newRoutesScene(l, mode, "bus", "hooks", "copy"))
	})
}

// newRoutesScene creates the table and a receiver for each route. The route copy is optional.
func newRoutesScene(l *layoutScene, mode string, routes ...string) *routesScene {
	l.t.Helper()
	s := &routesScene{layoutScene: l, to: map[string]*routeReceiver{}}
	initOutbox(s.t, s.layout, s.source)
	var list []string
	sinks := ""
	for _, name := range routes {
		need := "required"
		if name == "copy" {
			need = "optional"
		}
		to := &routeReceiver{Receiver: sinktest.NewReceiver(s.t)}
		to.Script(to.answer)
		s.to[name] = to
		list = append(list, fmt.Sprintf("{name: %s, sink: %s, need: %s}", name, name, need))
		sinks += fmt.Sprintf(routeSink, name, to.URL())
	}
	s.config = fmt.Sprintf(routesConfig, nameFor(s.source), mode, s.source, s.table, s.layout, strings.Join(list, ", "), sinks, adminKey)
	return s
}

func (s *routesScene) run() *relay {
	s.t.Helper()
	r := start(s.t, s.config)
	r.waitFor("source connected")
	return r
}

// writeRows begins to write rows of many groups, each in a transaction of its own, because polling
// cannot order the rows of one. rate is the rows per second, 0 for no limit. A row that is late does not
// delay the next ones. A writer commits some 300 rows per second.
func (s *routesScene) writeRows(rows, rate int) (wait func()) {
	count := layoutWriters * max(1, rate/250)
	s.groups, s.rows = 3*count, rows
	if s.db == nil {
		s.conn.SetMaxIdleConns(count) // otherwise most rows would need a new connection
	}
	var writers errgroup.Group
	began := time.Now()
	for w := range count {
		writers.Go(func() error {
			for i := w; i < rows; i += count {
				if rate > 0 {
					<-time.After(time.Until(began.Add(time.Second * time.Duration(i) / time.Duration(rate))))
				}
				if of := i - rows + len(s.late)*count; of >= 0 {
					select {
					case <-s.late[of/count]:
					case <-s.t.Context().Done():
						return s.t.Context().Err()
					}
				}
				r := &layoutRow{Group: i%s.groups + 1, N: i/s.groups + 1}
				if err := s.commit([]*layoutRow{r}); err != nil {
					return err
				}
				if err := s.noteEnd(r); err != nil {
					return err
				}
			}
			s.wrote.Store(int64(time.Since(began))) // the last writer stores last
			return nil
		})
	}
	return func() {
		s.t.Helper()
		if err := writers.Wait(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// checkRoute waits until a route has every row, checks the order of first arrivals, and returns
// the number of repeated arrivals.
func (s *routesScene) checkRoute(name string, rows int) (again int) {
	s.t.Helper()
	arrive(s.t, s.to[name].Receiver, rows)
	s.layoutScene.to = s.to[name].Receiver
	return s.checkOrder()
}

// awaitStates waits until that many rows are COMPLETED, and that many FAILED.
func (s *routesScene) awaitStates(completed, failed int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		done, dead := s.states()
		if done != completed || dead != failed {
			return fmt.Sprintf("%d rows are COMPLETED and %d FAILED, want %d and %d", done, dead, completed, failed)
		}
		return ""
	})
}

func (s *routesScene) states() (completed, failed int) {
	s.t.Helper()
	if s.db == nil {
		return count(s.t, s.conn, s.sql("SELECT count(*) FROM {table} WHERE status = 'COMPLETED'")),
			count(s.t, s.conn, s.sql("SELECT count(*) FROM {table} WHERE status = 'FAILED'"))
	}
	return s.countDocuments(s.deliveredDocument), s.countDocuments(s.failedDocument)
}

// A required route that refuses a row makes it FAILED once all required routes have ended; the others
// deliver it. An optional route that refuses one does not. No route gets a row twice, also if the FAILED
// rows are requeued: then the row is COMPLETED.
func TestRoutesThatFail(t *testing.T) {
	onRoutes(t, "stream", func(s *routesScene) {
		const rows = 40
		refuse := func(name string, r layoutRow) {
			text := r.payload()
			s.to[name].bad.Store(&text)
		}
		refuse("hooks", layoutRow{Group: 1, N: 1})
		refuse("copy", layoutRow{Group: 2, N: 1})
		r := s.run()
		s.writeRows(rows, 0)()
		for name, want := range map[string]int{"bus": rows, "hooks": rows - 1, "copy": rows - 1} {
			if again := s.checkRoute(name, want); again > 0 {
				s.t.Errorf("route %s: %d rows arrived again, want 0", name, again)
			}
		}
		s.awaitStates(rows-1, 1)
		if s.db == nil {
			if n := count(s.t, s.conn, s.sql("SELECT count(*) FROM {table} WHERE status = 'FAILED' AND failure_reason LIKE '%route hooks:%no such customer%'")); n != 1 {
				s.t.Errorf("%d rows are FAILED with the error of route hooks, want 1", n)
			}
		}

		for _, name := range []string{"hooks", "copy"} { // the FAILED row of each
			s.to[name].bad.Store(nil)
			r.post("deadletters/requeue", map[string]any{"outbox": s.table + "/" + name, "limit": 10})
		}
		for name := range s.to {
			arrive(s.t, s.to[name].Receiver, rows)
			if again := s.to[name].Counts().Duplicates; again > 0 {
				s.t.Errorf("route %s: %d rows arrived again after a requeue, want 0", name, again)
			}
		}
		s.awaitStates(rows, 0)
		expectStop(s.t, r)
	})
}

// A dead optional route holds no row: all are COMPLETED. It gets every row once it answers, also
// after a restart.
func TestADeadOptionalRoute(t *testing.T) { deadOptionalRoute(t, "stream") }

// The same while the relay polls.
func TestADeadOptionalRouteByPolling(t *testing.T) { deadOptionalRoute(t, "poll") }

func deadOptionalRoute(t *testing.T, mode string) {
	onRoutes(t, mode, func(s *routesScene) {
		const rows = 100
		s.to["copy"].dead.Store(true)
		r := s.run()
		s.writeRows(rows, 0)()
		s.awaitStates(rows, 0)
		r.kill()
		r = s.run()
		s.to["copy"].dead.Store(false)
		for name := range s.to {
			again := s.checkRoute(name, rows)
			s.t.Logf("route %s: %d rows arrived again", name, again)
		}
		s.awaitStates(rows, 0)
		expectStop(s.t, r)
	})
}

// While no route fails, three routes write no more rows of tables than one, because legs end in
// memory and the last one writes the outcome. One route writes no more than an outbox without routes:
// an outcome for each row. A tenth is for claims and checkpoints, whose number depends on time. On a
// busy machine a request may take a second, and its route spills: then the test runs again.
func TestThreeRoutesWriteAsOneDoes(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		h := postgresHost(version)
		preset, _ := layouts.Named("namastack")
		written := func(edit func(config string) string, routes ...string) int {
			source := h.database(t)
			s := newRoutesScene(&layoutScene{
				layoutCase: namastackCase(), t: t, source: source, table: preset.Schemas[layouts.Postgres].Table, conn: connect(t, source),
			}, "stream", routes...)
			s.config = edit(s.config)
			return s.tuplesWritten(tupleRows)
		}
		asIs := func(config string) string { return config }
		plain := written(func(config string) string {
			return strings.Replace(config, "routes: [{name: bus, sink: bus, need: required}]", "sink: bus", 1)
		}, "bus")
		most := plain + tupleRows/10
		least := func(routes ...string) (n int) {
			for range 3 {
				if n = written(asIs, routes...); n <= most {
					break
				}
			}
			return n
		}
		one, three := least("bus"), least("bus", "hooks", "copy")
		t.Logf("%d rows: %d tuples written without routes, %d with one, %d with three", tupleRows, plain, one, three)
		if one > most || three > most {
			t.Errorf("%d tuples written with one route and %d with three, want at most %d", one, three, most)
		}
	})
}

// tupleRows is the number of rows whose writes are counted.
const tupleRows = 400

// tuplesWritten delivers rows to all routes and returns how many tuples the relay has written.
func (s *routesScene) tuplesWritten(rows int) (tuples int) {
	s.t.Helper()
	r := s.run()
	const written = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::int FROM pg_stat_user_tables"
	before := count(s.t, s.conn, written)
	s.writeRows(rows, 0)()
	for name := range s.to {
		s.checkRoute(name, rows)
	}
	s.awaitStates(rows, 0)
	expectStop(s.t, r) // its sessions report their statistics
	within(s.t, testTimeout, func() string {
		last := tuples
		if tuples = count(s.t, s.conn, written); tuples < 2*rows || tuples != last {
			return "the statistics are not complete"
		}
		return ""
	})
	return tuples - before - rows // which the service inserted
}

// A first start over rows that were there before, in memory or spilled, and one after a lost log:
// each route gets what it misses, in order. The dead route has spilled most rows by then, and the
// others do not get them again.
func TestRoutesAfterSnapshots(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		for _, buffer := range []int{50, 10_000} {
			t.Run(fmt.Sprint(buffer), func(t *testing.T) {
				t.Parallel()
				routesAfterSnapshots(t, postgresHost(version), buffer)
			})
		}
	})
}

func routesAfterSnapshots(t *testing.T, h host, buffer int) {
	t.Helper()
	const rows = 300
	preset, _ := layouts.Named("namastack")
	source := h.database(t)
	s := newRoutesScene(&layoutScene{
		layoutCase: namastackCase(), t: t, source: source, table: preset.Schemas[layouts.Postgres].Table, conn: connect(t, source),
	}, "stream", "bus", "hooks", "copy")
	s.config += fmt.Sprintf("dispatch: {global-buffer-size: %d}\n", buffer)
	s.to["hooks"].dead.Store(true)
	s.writeRows(rows, 0)()
	r := s.run()
	for _, name := range []string{"bus", "copy"} {
		if again := s.checkRoute(name, rows); again > 0 {
			t.Errorf("route %s: %d rows arrived again, want 0", name, again)
		}
	}
	within(t, testTimeout, func() string { // no checkpoint is saved before
		if n := r.metric(`sluicebox_spilled_rows{sink="hooks"}`); n < rows/2 {
			return fmt.Sprintf("%.0f rows of the dead route are spilled", n)
		}
		return ""
	})
	expectStop(t, r)
	within(t, testTimeout, func() string { // the server may free the slot late
		_, err := s.conn.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
		return failure(err)
	})
	r = s.run()
	s.to["hooks"].dead.Store(false)
	for name := range s.to {
		if again := s.checkRoute(name, rows); again > 0 {
			t.Errorf("route %s: %d rows arrived again, want 0", name, again)
		}
	}
	s.awaitStates(rows, 0)
	expectStop(t, r)
}

// A row that an operator sets back in its table goes to all its routes again, found by the sweep.
func TestRowsOfRoutesThatAreSetBack(t *testing.T) {
	onRoutes(t, "stream", func(s *routesScene) {
		if s.db != nil {
			s.t.Skip("one statement for tables is enough")
		}
		const rows, back = 60, 7
		r := s.run()
		s.writeRows(rows, 0)()
		s.awaitStates(rows, 0)
		for name := range s.to {
			s.checkRoute(name, rows)
		}
		if _, err := s.conn.exec(s.sql(fmt.Sprintf("UPDATE {table} SET status = 'NEW', completed_at = NULL WHERE id IN (SELECT id FROM (SELECT id FROM {table} ORDER BY id LIMIT %d) AS few)", back))); err != nil {
			s.t.Fatal(err)
		}
		within(s.t, testTimeout, func() string {
			for name, to := range s.to {
				if again := to.Counts().Duplicates; again != back {
					return fmt.Sprintf("route %s: %d rows arrived again, want %d", name, again, back)
				}
			}
			return ""
		})
		s.awaitStates(rows, 0)
		expectStop(s.t, r)
	})
}
