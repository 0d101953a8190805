package blackbox

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// One of three receivers is dead for two thirds of the load, and the relay is killed between the
// outcomes of one row: one route has delivered it, and another is about to. No route misses a row, and
// first arrivals are in order on each route. None gets a row again but those above its mark at the
// kill: the dead route does not hold the marks of the others. No row is COMPLETED before the dead route
// has it, and the optional route holds no row. The full run, with a route that is dead for 60 s:
//
//	SLUICEBOX_TEST_CRASHES=50 SLUICEBOX_TEST_ROWS=90000 SLUICEBOX_TEST_VERSIONS=all go test -v -timeout 2h -run TestRoutesUnderKills ./cmd/internal/blackbox
func TestRoutesUnderKills(t *testing.T) { routesUnderKills(t, "stream", 3) }

// The same while the relay polls. The order is that of the table.
func TestRoutesUnderKillsByPolling(t *testing.T) { routesUnderKills(t, "poll", 2) }

func routesUnderKills(t *testing.T, mode string, usual int) {
	onRoutes(t, mode, func(s *routesScene) {
		kills, rows, rate := crashes(s.t, usual), many(s.t, 1500), 250
		if os.Getenv(rowsVariable) != "" {
			rate = 1000
		}
		bus, hooks := s.to["bus"], s.to["hooks"]
		hooks.dead.Store(true)
		for range kills {
			s.late = append(s.late, make(chan struct{}))
		}
		r := s.run()
		wait := s.writeRows(rows, rate)
		var all []routeKill
		early, began, dead := 0, time.Now(), time.Duration(0)
		revive := func() {
			early, _ = s.states()
			hooks.dead.Store(false)
			dead = time.Since(began)
		}
		for kill := range kills {
			if kill > 0 && kill == 2*kills/3 {
				revive()
			}
			arrive(s.t, bus.Receiver, rows*(kill+1)/(kills+2))
			<-time.After(time.Duration(rand.Int64N(int64(100 * time.Millisecond)))) // at random
			all = append(all, s.killBetweenOutcomes(r, kill))
			r = start(s.t, s.config)
		}
		killed := time.Since(began)
		if dead == 0 { // after a single kill
			revive()
		}
		wait()
		s.t.Logf("%d rows were written in %s, under %d kills within %s", rows, time.Duration(s.wrote.Load()).Round(time.Second), kills, killed.Round(time.Second))
		if early > 0 {
			s.t.Errorf("%d rows were COMPLETED before a required route had them", early)
		}
		for name := range s.to {
			again := s.checkRoute(name, rows)
			s.checkRepeats(name, all)
			s.t.Logf("route %s: %d rows under %d kills, %d arrived again; route hooks was dead for %s", name, rows, kills, again, dead.Round(time.Second))
		}
		s.awaitStates(rows, 0)
		expectStop(s.t, r)
	})
}

// routeKill is what was known when a relay was killed.
type routeKill struct {
	at time.Time
	// marks are the saved marks of the routes; nil if positions cannot be compared with those of rows.
	marks map[string]pglogrepl.LSN
}

// killBetweenOutcomes kills a relay while a route sends a row that another route has delivered.
func (s *routesScene) killBetweenOutcomes(r *relay, kill int) (k routeKill) {
	s.t.Helper()
	last := s.to["copy"]
	if hooks := s.to["hooks"]; kill%2 == 0 && !hooks.dead.Load() {
		last = hooks
	}
	release := make(chan struct{})
	before := len(last.Log())
	last.held.Store(&release)
	close(s.late[kill]) // or it may have every row already
	within(s.t, testTimeout, func() string {
		delivered := map[string]bool{}
		for _, got := range s.to["bus"].Accepted() {
			delivered[got.ID] = true
		}
		for _, got := range last.Log()[before:] {
			if got.Status == 0 && delivered[got.ID] {
				return ""
			}
		}
		return "no row is between its outcomes"
	})
	r.kill()
	k.at = time.Now()
	last.held.Store(nil)
	close(release)
	k.marks = s.marks()
	return k
}

// marks returns the saved marks of the routes; nil where positions are not those of PostgreSQL.
func (s *routesScene) marks() map[string]pglogrepl.LSN {
	s.t.Helper()
	if s.db != nil || !s.conn.kind.postgres {
		return nil
	}
	all := map[string]pglogrepl.LSN{}
	err := s.conn.each("SELECT m->>'leg', m->>'position' FROM sluicebox.record, json_array_elements(body::json->'legs') AS m WHERE key = 'checkpoint' AND m->>'position' <> ''", nil,
		func(scan func(...any) error) error {
			var leg, position string
			if err := scan(&leg, &position); err != nil {
				return err
			}
			at, err := pglogrepl.ParseLSN(position)
			all[leg[len(s.table)+1:]] = at
			return err
		})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// noteEnd records a position at or behind the end of the row's transaction, which has committed.
func (s *routesScene) noteEnd(r *layoutRow) error {
	if s.db != nil || !s.conn.kind.postgres {
		return nil
	}
	var text string
	if err := s.conn.row("SELECT pg_current_wal_insert_lsn()::text").Scan(&text); err != nil {
		return err
	}
	end, err := pglogrepl.ParseLSN(text)
	s.ends.Store(r.place(), end)
	return err
}

// place returns the row's group and number.
func (r *layoutRow) place() [2]int { return [2]int{r.Group, r.N} }

// checkRepeats checks that a route got again only rows that were above its mark at the kill before, or
// in flight. Where marks cannot be compared, they are rows of the last moments before it.
func (s *routesScene) checkRepeats(name string, kills []routeKill) {
	s.t.Helper()
	first := map[string]sinktest.Received{}
	wrong := 0
	if last := kills[len(kills)-1].marks; len(last) > 0 && last[name] == 0 {
		s.t.Errorf("route %s: no mark was saved, so its repeats cannot be judged", name)
	}
	for _, got := range s.to[name].Accepted() {
		earlier, again := first[got.ID]
		first[got.ID] = got
		if !again {
			continue
		}
		var before *routeKill
		for i := range kills {
			if kills[i].at.Before(got.At) {
				before = &kills[i]
			}
		}
		var row layoutRow
		if err := json.Unmarshal(got.Payload, &row); err != nil {
			s.t.Fatalf("payload %q: %v", got.Payload, err)
		}
		why := ""
		switch {
		case before == nil || before.at.Before(earlier.At):
			why = "although no kill came between"
		case before.marks != nil:
			end, _ := s.ends.Load(row.place())
			mark := before.marks[name]
			inFlight := before.at.Sub(earlier.At) <= routeBound // a spilled row, whose end was not yet written
			if end != nil && end.(pglogrepl.LSN) <= mark && !inFlight {
				why = fmt.Sprintf("although it ends at %s, below the mark %s", end, mark)
			}
		case os.Getenv(crashesVariable) != "" && before.at.Sub(earlier.At) > routeBound: // other tests delay the marks
			why = fmt.Sprintf("%s before the kill", before.at.Sub(earlier.At))
		}
		if why != "" {
			if wrong++; wrong <= 5 {
				s.t.Errorf("route %s: row %d of group %d arrived again %s", name, row.N, row.Group, why)
			}
		}
	}
	if wrong > 5 {
		s.t.Errorf("route %s: %d rows arrived again that should not", name, wrong)
	}
}

// routeBound is the time for which a delivered row may lack a mark, or the record that replaces it
// while the relay polls. A row that holds the mark of its leg is spilled within a second. The test
// machine may delay that.
const routeBound = 5 * time.Second
