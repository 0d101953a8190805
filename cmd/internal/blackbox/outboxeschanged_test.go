package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const otherOutbox = "\n  - {table: other_events, layout: custom, kind: other, columns: {id: id, group: grp, payload: payload, delivered: done, failed: failed}, state: timestamps, sink: hooks}\n"

// changedConfig relays a table without a state, and others.
const changedConfig = `
name: %s
source: {mode: auto, url: %q}
outboxes:
  - {table: %s, layout: %s, sink: hooks}%s
sinks:
  hooks: {type: webhook, url: %q, max-retries: 1, backoff: {initial: 50ms, max: 500ms}, proof-wait: 1s}
admin: {listen: %s}
`

// An outbox is added or removed while the receiver is down and the relay is stopped, and the
// relay is killed right behind its start. Every row of the table without a state arrives, in
// order per group, and so does the added outbox's.
func TestRowsWithoutAStateOutliveAChangeOfOutboxes(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Versions() {
		for name, others := range map[string][2]string{"added": {"", otherOutbox}, "removed": {otherOutbox, ""}} {
			t.Run(fmt.Sprint("pg", version, " ", name), func(t *testing.T) {
				t.Parallel()
				changeOutboxes(t, servers.Database(t, version), others, nil)
			})
		}
	}
}

// Without a free slot the relay exits and keeps the old one, so that the next start loses nothing.
func TestOutboxIsAddedWithoutAFreeSlot(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			srv := servers.Start(t, version, map[string]string{"max_replication_slots": "1"})
			changeOutboxes(t, srv.URL, [2]string{"", otherOutbox}, func(start func() *relay) {
				r := start()
				if code := r.exitCode(); code != 78 || !strings.Contains(r.said(), "all replication slots are taken") {
					t.Errorf("exit code %d, want 78 and the reason", code)
				}
				srv.Restart(map[string]string{"max_replication_slots": "2"})
			})
		})
	}
}

// changeOutboxes runs one such change. before, if not nil, is called before the first start with
// the changed configuration.
func changeOutboxes(t *testing.T, source string, others [2]string, before func(start func() *relay)) {
	t.Helper()
	preset, _ := layouts.Named("debezium")
	s := &layoutScene{layoutCase: debeziumCase(true), t: t, source: source, table: preset.Schemas[layouts.Postgres].Table, conn: connect(t, source)}
	var up atomic.Bool
	up.Store(true)
	s.prepare(func(*sinktest.Request) sinktest.Answer {
		if up.Load() {
			return sinktest.Answer{}
		}
		return sinktest.Answer{Status: http.StatusServiceUnavailable}
	})
	if _, err := s.conn.exec("CREATE TABLE other_events (id text PRIMARY KEY, grp text, payload text, done timestamptz, failed timestamptz)"); err != nil {
		t.Fatal(err)
	}
	config := func(other string) string {
		return fmt.Sprintf(changedConfig, nameFor(source), source, s.table, s.layout, other, s.to.URL(), adminKey)
	}
	const groups, each = 4, 40
	n := 0
	put := func() {
		for range each {
			s.put(&layoutRow{Group: n%groups + 1, N: n/groups + 1})
			n++
		}
	}

	r := start(t, config(others[0]))
	r.waitFor("source connected")
	put()
	arrive(t, s.to, n)
	up.Store(false)
	put()
	r.waitFor("circuit breaker opened")
	expectStop(t, r)
	put()
	if _, err := s.conn.exec("INSERT INTO other_events (id, grp, payload) VALUES ($1, 'other', '{\"Group\": 9, \"N\": 1}')", uuid.NewString()); err != nil {
		t.Fatal(err)
	}

	if before != nil {
		before(func() *relay { return start(t, config(others[1])) })
		s.conn = connect(t, source)
	}
	for range 2 {
		r = start(t, config(others[1]))
		r.waitFor("leadership acquired")
		r.kill()
		put()
	}
	r = start(t, config(others[1]))
	r.waitFor("source connected")
	put()
	up.Store(true)
	if others[1] != "" {
		n++
	}
	arrive(t, s.to, n)
	if again := s.checkOrder(); strings.Contains(r.said(), "rows before this position not read") {
		t.Errorf("the relay reports rows that it did not read; %d arrived again", again)
	}
	expectStop(t, r)
}
