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
	s := newChangedScene(t, source)
	s.up.Store(true)
	r := start(t, s.config(others[0]))
	r.waitFor("source connected")
	s.putSome()
	arrive(t, s.to, s.n)
	s.up.Store(false)
	s.putSome()
	r.waitFor("circuit breaker opened")
	expectStop(t, r)
	s.putSome()
	s.putOther()

	if before != nil {
		before(func() *relay { return start(t, s.config(others[1])) })
		s.conn = connect(t, source)
	}
	for range 2 {
		r = start(t, s.config(others[1]))
		r.waitFor("leadership acquired")
		r.kill()
		s.putSome()
	}
	r = start(t, s.config(others[1]))
	r.waitFor("source connected")
	s.putSome()
	s.up.Store(true)
	if others[1] != "" {
		s.n++
	}
	arrive(t, s.to, s.n)
	if again := s.checkOrder(); strings.Contains(r.said(), "rows before this position not read") {
		t.Errorf("the relay reports rows that it did not read; %d arrived again", again)
	}
	expectStop(t, r)
}

// changedScene is a table without a state, beside other_events with one. The receiver is down
// until it is up.
type changedScene struct {
	*layoutScene
	up atomic.Bool
	n  int // rows in the table without a state
}

func newChangedScene(t *testing.T, source string) *changedScene {
	t.Helper()
	preset, _ := layouts.Named("debezium")
	s := &changedScene{layoutScene: &layoutScene{layoutCase: debeziumCase(true), t: t, source: source, table: preset.Schemas[layouts.Postgres].Table, conn: connect(t, source)}}
	s.prepare(func(*sinktest.Request) sinktest.Answer {
		if s.up.Load() {
			return sinktest.Answer{}
		}
		return sinktest.Answer{Status: http.StatusServiceUnavailable}
	})
	if _, err := s.conn.exec("CREATE TABLE other_events (id text PRIMARY KEY, grp text, payload text, done timestamptz, failed timestamptz)"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *changedScene) config(other string) string {
	return fmt.Sprintf(changedConfig, nameFor(s.source), s.source, s.table, s.layout, other, s.to.URL(), adminKey)
}

// putSome commits some rows of each group.
func (s *changedScene) putSome() {
	const groups, each = 4, 40
	for range each {
		s.put(&layoutRow{Group: s.n%groups + 1, N: s.n/groups + 1})
		s.n++
	}
}

// putOther commits a row of other_events.
func (s *changedScene) putOther() {
	s.t.Helper()
	if _, err := s.conn.exec("INSERT INTO other_events (id, grp, payload) VALUES ($1, 'other', '{\"Group\": 9, \"N\": 1}')", uuid.NewString()); err != nil {
		s.t.Fatal(err)
	}
}

// The relay is killed right behind its first start, before the rows that it found in another table
// are settled or spilled. Every row of the table without a state that committed since arrives, in
// order per group.
func TestRowsWithoutAStateOutliveAKilledFirstStart(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			s := newChangedScene(t, servers.Database(t, version))
			s.putOther()
			config := s.config(otherOutbox) + "dispatch: {on-failed: block}\n"
			for _, message := range []string{"leadership acquired", "source connected", "leadership acquired"} {
				r := start(t, config)
				r.waitFor(message)
				r.kill()
				s.putSome()
			}
			s.up.Store(true)
			r := start(t, config)
			arrive(t, s.to, s.n+1)
			s.checkOrder()
			expectStop(t, r)
		})
	}
}
