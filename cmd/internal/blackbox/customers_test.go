package blackbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// customers relays a table whose rows name their receivers. The port 1 is closed.
const customers = `
name: %s
source: {url: %q}
outboxes:
  - {table: calls, layout: custom, kind: call, sink: customers, state: timestamps, columns: {id: row_key, group: grp, payload: body, attributes: [target_url], delivered: sent_at, failed: dead_at, error: why}}
sinks:
  customers:
    type: webhook
    url: '{attr.target_url}'
    allow-hosts: [%s, %s, '127.0.0.1:1']
    request-timeout: 10m
    max-concurrent-groups: 8
    max-retries: 1
    backoff: {initial: 50ms, max: 500ms}
admin: {listen: %s}
`

const (
	liveGroups, hangingGroups, mixedGroups, closedGroups = 20, 40, 10, 10
	callsPerGroup                                        = 15
)

// Each row names its receiver. One of them does not answer and another port is closed: the rows
// of the others arrive meanwhile, also with a relay that starts after a crash. The rows of a
// group keep their order across receivers, and a row that names another host is FAILED.
func TestRowsThatNameTheirReceiver(t *testing.T) {
	t.Parallel()
	onHosts(t, servers.Spread(t, hosts()), func(t *testing.T, h host) {
		live, hanging, release := sinktest.NewReceiver(t), sinktest.NewReceiver(t), make(chan struct{})
		released := false
		free := func() {
			if !released {
				released = true
				close(release)
			}
		}
		t.Cleanup(free)
		hanging.Script(func(*sinktest.Request) sinktest.Answer {
			<-release
			return sinktest.Answer{Status: http.StatusNoContent}
		})
		database := h.database(t)
		at := "timestamptz"
		if !h.kind.postgres {
			at = "datetime(6)"
		}
		h.kind.run(t, database, fmt.Sprintf(`CREATE TABLE calls (row_key BIGINT PRIMARY KEY, grp VARCHAR(64) NOT NULL, body TEXT NOT NULL,
			target_url VARCHAR(255), sent_at %[1]s, dead_at %[1]s, why TEXT)`, at))
		config := fmt.Sprintf(customers, nameFor(database), database, strings.TrimPrefix(live.URL(), "http://"), strings.TrimPrefix(hanging.URL(), "http://"), adminKey)
		r := start(t, config)
		r.waitFor("source connected")
		refused := insertCalls(t, h, database, live.URL(), hanging.URL())

		arrive(t, live, liveGroups*callsPerGroup+mixedGroups)
		c := connect(t, database)
		within(t, testTimeout, func() string {
			n := count(t, c, "SELECT count(*) FROM calls WHERE dead_at IS NOT NULL AND why LIKE '%in allow-hosts%'")
			if n != refused {
				return fmt.Sprintf("%d rows are FAILED by their host, want %d", n, refused)
			}
			return ""
		})
		if n := count(t, c, "SELECT count(*) FROM calls WHERE why LIKE '%secret%'"); n > 0 {
			t.Errorf("%d errors show the address of their row", n)
		}
		within(t, testTimeout, func() string {
			open := r.status().Sinks[0].OpenBreakers
			if len(open) != 1 || open[0].Endpoint != "http://127.0.0.1:1" {
				return fmt.Sprintf("open breakers: %+v, want that of the closed port", open)
			}
			return ""
		})
		if n := r.metric(`sluicebox_sink_endpoints_open{sink="customers"}`); n != 1 {
			t.Errorf("%v endpoints are open by the metric, want 1", n)
		}
		if s := r.status(); !s.Ready {
			t.Errorf("one of several receivers is down, and the relay is not ready: %s", s.stdout)
		}
		if n := hanging.Counts().Distinct; n > 0 {
			t.Errorf("%d rows were accepted by the receiver that does not answer", n)
		}

		r.kill()
		r = start(t, config)
		free()
		arrive(t, live, liveGroups*callsPerGroup+2*mixedGroups)
		arrive(t, hanging, hangingGroups*callsPerGroup+mixedGroups)
		awaitZero(t, "rows are not settled", func() int {
			return count(t, c, "SELECT count(*) FROM calls WHERE sent_at IS NULL AND dead_at IS NULL AND grp NOT LIKE 'closed%'")
		})
		if n := count(t, c, "SELECT count(*) FROM calls WHERE sent_at IS NOT NULL OR dead_at IS NOT NULL"); n != (liveGroups+hangingGroups)*callsPerGroup+3*mixedGroups+refused {
			t.Errorf("%d rows are settled", n)
		}
		all := slices.Concat(live.Accepted(), hanging.Accepted())
		slices.SortStableFunc(all, func(a, b sinktest.Received) int { return a.At.Compare(b.At) })
		checkNumbered(t, all)
		expectStop(t, r)
	})
}

// insertCalls commits rows to receivers that live, that hang, to a closed port and to hosts that
// are refused, and returns the number of the last ones.
func insertCalls(t *testing.T, h host, database, live, hanging string) (refused int) {
	id := 1_000_000 // ids of equal length
	var values []string
	add := func(group, address string) {
		id++
		values = append(values, fmt.Sprintf(`(%d, '%s', '{"group": "%s"}', '%s')`, id, group, group, address))
	}
	for range callsPerGroup {
		for g := range hangingGroups {
			add(fmt.Sprint("hanging", g), hanging+"/secret-key?token=secret")
		}
		for g := range closedGroups {
			add(fmt.Sprint("closed", g), "http://127.0.0.1:1/secret-key")
		}
		for g := range liveGroups {
			add(fmt.Sprint("live", g), live+"/secret-key?token=secret")
		}
	}
	for g := range mixedGroups {
		for _, address := range []string{live, hanging, live} {
			add(fmt.Sprint("mixed", g), address+"/mixed")
		}
	}
	bad := []string{"http://127.0.0.1:22/secret", "http://169.254.169.254/secret", "http://[::1]/secret", "http://localhost/secret", "https://other.example/secret"}
	for _, address := range bad {
		add("refused"+address, address)
	}
	for chunk := range slices.Chunk(values, 100) {
		h.kind.run(t, database, "INSERT INTO calls (row_key, grp, body, target_url) VALUES "+strings.Join(chunk, ", "))
	}
	return len(bad)
}
