package blackbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// routeState is a route as `routes list --json` prints it.
type routeState struct {
	Outbox, Route, State, Reason string
	Failed                       *int
	Lag                          struct{ Rows int }
}

// route returns the state of a route.
func (s *routesScene) route(r *relay, name string) routeState {
	s.t.Helper()
	stdout, stderr, code := command(s.t, nil, "routes", "list", "--json", "--admin", r.admin)
	var list struct{ Routes []routeState }
	if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil {
		s.t.Fatalf("routes list: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	for _, one := range list.Routes {
		if one.Route == name {
			return one
		}
	}
	s.t.Fatalf("no route %s in %s", name, stdout)
	return routeState{}
}

// failedOn returns the outbox and the number of the dead letters of a route, from the database.
func (s *routesScene) failedOn(route string) (outbox string, rows int) {
	s.t.Helper()
	stdout, stderr, code := command(s.t, nil, "deadletters", "list", "--json", "--route", route, "-c", configFile(s.t, s.config))
	var list struct {
		DeadLetters []struct{ Outbox string } `json:"deadletters"`
	}
	if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil {
		s.t.Fatalf("deadletters list: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	for _, d := range list.DeadLetters {
		outbox = d.Outbox
	}
	return outbox, len(list.DeadLetters)
}

// A paused route gets nothing, also after a kill, while the others get every row. Once resumed it gets
// all of them in order, and they are COMPLETED.
func TestRoutePauseSurvivesAKill(t *testing.T) {
	onRoutes(t, "stream", func(s *routesScene) {
		const rows = 60
		r := s.run()
		outbox := s.route(r, "hooks").Outbox
		r.operate("routes", "pause", "--route", "hooks", "--reason", "an incident")
		s.writeRows(rows, 0)()
		for _, name := range []string{"bus", "copy"} {
			s.checkRoute(name, rows)
		}
		r.kill()
		r = s.run()
		within(s.t, testTimeout, func() string {
			if got := s.route(r, "hooks"); got.State != "paused" || got.Reason != "an incident" || got.Lag.Rows != rows {
				return fmt.Sprintf("the paused route is %+v", got)
			}
			return ""
		})
		if n := len(s.to["hooks"].Accepted()); n > 0 {
			s.t.Errorf("the paused route got %d rows", n)
		}
		if done, failed := s.states(); done+failed > 0 {
			s.t.Errorf("%d rows are COMPLETED and %d FAILED before the paused route had them", done, failed)
		}
		r.operate("routes", "resume", "--outbox", outbox, "--route", "hooks")
		s.checkRoute("hooks", rows)
		s.awaitStates(rows, 0)
		expectStop(s.t, r)
	})
}

// A dead letter belongs to the route that refused the row. A requeue sends it to that route alone, and
// completes the row. A replay to a route repeats no row for another one.
func TestRequeueAndReplayOfOneRoute(t *testing.T) {
	onRoutes(t, "stream", func(s *routesScene) {
		const rows = 40
		bad := (&layoutRow{Group: 1, N: 1}).payload()
		s.to["hooks"].bad.Store(&bad)
		r := s.run()
		s.writeRows(rows, 0)()
		s.awaitStates(rows-1, 1)
		outbox, n := s.failedOn("hooks")
		if n != 1 || !strings.HasSuffix(outbox, "/hooks") {
			s.t.Errorf("route hooks has %d dead letters, of outbox %q", n, outbox)
		}
		if _, n := s.failedOn("bus"); n != 0 {
			s.t.Errorf("route bus has %d dead letters", n)
		}
		s.to["hooks"].bad.Store(nil)
		s.operateWith(r, "deadletters", "requeue", "--route", "hooks", "--all", "--yes")
		s.awaitStates(rows, 0)
		for name, to := range s.to { // the row went on out of order, because on-failed is not block
			arrive(s.t, to.Receiver, rows)
			if n := len(to.Accepted()); n != rows {
				s.t.Errorf("route %s got %d rows, want %d", name, n, rows)
			}
		}

		file := configFile(s.t, s.config)
		if stdout, stderr, code := command(s.t, nil, "replay", "start", "--since", "1h", "-c", file); code != 64 || !strings.Contains(stderr, "/bus") {
			s.t.Errorf("a replay without a route: exit code %d, %s%s", code, stdout, stderr)
		}
		box := strings.TrimSuffix(outbox, "/hooks")
		if stdout, stderr, code := command(s.t, nil, "replay", "start", "--since", "1h", "--outbox", box+"/copy", "-c", file); code != 0 {
			s.t.Fatalf("the replay: exit code %d, %s%s", code, stdout, stderr)
		}
		for name, want := range map[string]int{"bus": rows, "hooks": rows, "copy": 2 * rows} {
			if n := len(s.to[name].Accepted()); n != want {
				s.t.Errorf("route %s got %d rows, want %d", name, n, want)
			}
		}
		expectStop(s.t, r)
	})
}

// operateWith is operate with the configuration, which names the outboxes.
func (s *routesScene) operateWith(r *relay, args ...string) {
	s.t.Helper()
	r.operate(append(args, "-c", configFile(s.t, s.config))...)
}

// A route that the configuration no longer names ends the start, until its rows are moved to another
// one, or given up.
func TestRouteIsRenamedAndDropped(t *testing.T) {
	onRoutes(t, "stream", func(s *routesScene) {
		const rows = 30
		s.to["hooks"].dead.Store(true)
		r := s.run()
		outbox := s.route(r, "hooks").Outbox
		s.writeRows(rows, 0)()
		s.checkRoute("bus", rows)
		expectStop(s.t, r)

		s.config = strings.Replace(s.config, "name: hooks, sink: hooks", "name: web, sink: hooks", 1)
		s.expectRefused("sluicebox routes rename --outbox " + outbox + " hooks NEW")
		s.change("rename", "--outbox", outbox, "hooks", "web")
		s.to["hooks"].dead.Store(false)
		r = s.run()
		s.checkRoute("hooks", rows)
		s.awaitStates(rows, 0)

		s.to["hooks"].dead.Store(true)
		more := 2 * rows
		for i := range rows {
			s.put(&layoutRow{Group: i%3 + 1, N: rows + i/3})
		}
		arrive(s.t, s.to["bus"].Receiver, more)
		within(s.t, testTimeout, func() string {
			if got := s.route(r, "web"); got.Lag.Rows != rows {
				return fmt.Sprintf("the route is %+v", got)
			}
			return ""
		})
		expectStop(s.t, r)
		s.config = strings.Replace(s.config, "{name: web, sink: hooks, need: required}, ", "", 1)
		s.expectRefused("sluicebox routes drop --outbox " + outbox + " web")
		s.change("drop", "--yes", "--outbox", outbox, "web")
		r = s.run()
		s.awaitStates(more, 0)
		expectStop(s.t, r)
	})
}

// expectRefused expects the start to end with 78 and a text.
func (s *routesScene) expectRefused(text string) {
	s.t.Helper()
	_, stderr, code := command(s.t, nil, "run", "-c", configFile(s.t, s.config))
	if code != 78 || !strings.Contains(stderr, text) {
		s.t.Fatalf("run: exit code %d, want 78 and %q\n%s", code, text, stderr)
	}
}

// change runs `routes rename` or `drop`.
func (s *routesScene) change(args ...string) {
	s.t.Helper()
	args = append(append([]string{"routes"}, args...), "-c", configFile(s.t, s.config))
	if stdout, stderr, code := command(s.t, nil, args...); code != 0 {
		s.t.Fatalf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
	}
}
