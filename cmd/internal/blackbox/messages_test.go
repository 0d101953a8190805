package blackbox

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// messagesConfig relays messages without a table to a webhook.
const messagesConfig = `
name: %s
source: {mode: %s, url: %q}
outboxes:
  - message-prefix: orders
    layout: custom
    state: none
    kind: order
    columns: {id: id, group: group, payload: payload, type: type}
    sink: hooks
sinks:
  hooks: {type: webhook, url: %q, headers: {X-Type: '{type}', X-Group: '{group}'}, max-retries: 1, backoff: {initial: 50ms, max: 500ms}, proof-wait: 1s%s}
admin: {listen: %s}
`

// messagesCase is a service that emits messages.
func messagesCase() *layoutCase {
	return &layoutCase{
		layout: "custom", id: uuid.NewString, typ: "OrderPaid", stateless: true,
		insert: "SELECT pg_logical_emit_message(true, 'orders', json_build_object('id', $1::text, 'group', $2::text, 'type', 'OrderPaid', 'payload', $3::json)::text)",
		args:   func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
	}
}

// Messages without a table arrive, first arrivals in order per group, while the relay is
// killed. One is refused, and one is no JSON: they become FAILED and hold up nothing. The refused
// one is delivered after a requeue. The full run:
//
//	SLUICEBOX_TEST_ROWS=20000 SLUICEBOX_TEST_CRASHES=10 SLUICEBOX_TEST_VERSIONS=all go test -v -timeout 1h -run TestMessagesWithoutATable ./cmd/internal/blackbox
func TestMessagesWithoutATable(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			source := servers.Database(t, version)
			s := &layoutScene{layoutCase: messagesCase(), t: t, source: source, conn: connect(t, source), to: sinktest.NewReceiver(t)}
			s.groups, s.rows = 3*layoutWriters, many(t, 1000)
			var accepts atomic.Bool
			s.to.Script(func(r *sinktest.Request) sinktest.Answer {
				if accepts.Load() {
					return sinktest.Answer{}
				}
				return s.answer(r)
			})
			config := fmt.Sprintf(messagesConfig, nameFor(source), "stream", source, s.to.URL(), "", adminKey)
			r := start(t, config)
			r.waitFor("rows before this position not read")
			r.waitFor("source connected")
			if _, err := s.conn.exec("SELECT pg_logical_emit_message(true, 'orders', 'no JSON')"); err != nil {
				t.Fatal(err)
			}
			r.waitFor("message is no JSON object")

			written := make(chan error, 1)
			go func() { written <- s.write() }()
			kills := crashes(t, 3)
			for kill := range kills {
				arrive(t, s.to, s.rows*(kill+1)/(kills+2))
				r.kill()
				r = start(t, config)
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			arrive(t, s.to, s.rows-1)
			again := s.checkOrder()
			bad := s.bad.Load()
			if bad == nil {
				t.Fatal("the message to refuse has not arrived")
			}
			within(t, testTimeout, func() string {
				out, errs, code := r.sluicebox("deadletters", "list", "--outbox", "orders")
				if code != 0 || !strings.Contains(out, *bad) || !strings.Contains(out, "no such customer") || !strings.Contains(out, "message is no JSON object") {
					return fmt.Sprintf("deadletters list has not both: exit code %d\n%s%s", code, out, errs)
				}
				return ""
			})
			s.checkDoctor(config)
			accepts.Store(true)
			r.operate("deadletters", "requeue", "--outbox", "orders", "--yes", *bad)
			arrive(t, s.to, s.rows)
			t.Logf("%d messages of %d groups under %d kills; %d arrived again", s.rows, s.groups, kills, again)
			expectStop(t, r)
		})
	}
}

// Messages larger than the buffer keep their payloads while the receiver is down, also across a
// kill, because no claim could read them again.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			source := servers.Database(t, version)
			s := &layoutScene{layoutCase: messagesCase(), t: t, source: source, conn: connect(t, source), to: sinktest.NewReceiver(t)}
			var up atomic.Bool
			s.to.Script(func(*sinktest.Request) sinktest.Answer {
				if up.Load() {
					return sinktest.Answer{}
				}
				return sinktest.Answer{Status: http.StatusServiceUnavailable}
			})
			config := fmt.Sprintf(messagesConfig, nameFor(source), "stream", source, s.to.URL(), ", buffer-bytes: 100kB", adminKey)
			r := start(t, config)
			r.waitFor("source connected")
			const groups, rows, size = 10, 60, 50_000
			emit := func(from, to int) {
				for i := from; i < to; i++ {
					_, err := s.conn.exec("SELECT pg_logical_emit_message(true, 'orders', json_build_object('id', $1::int, 'group', $2::int, 'type', 'OrderPaid', 'payload', repeat('x', $3) || $1)::text)", i, i%groups, size)
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			emit(0, rows/2)
			r.waitFor("circuit breaker opened")
			r.kill()
			r = start(t, config)
			emit(rows/2, rows)
			r.waitFor("circuit breaker opened")
			up.Store(true)
			arrive(t, s.to, rows)
			last := map[string]int{}
			seen := map[string]bool{}
			for _, got := range s.to.Accepted() {
				n, err := strconv.Atoi(got.ID)
				if err != nil || string(got.Payload) != strings.Repeat("x", size)+got.ID {
					t.Fatalf("message %q has a payload of %d bytes: %v", got.ID, len(got.Payload), err)
				}
				if group := fmt.Sprint(n % groups); !seen[got.ID] {
					if before, some := last[group]; some && n < before {
						t.Errorf("group %s: message %d arrived after %d", group, n, before)
					}
					last[group], seen[got.ID] = n, true
				}
			}
			expectStop(t, r)
		})
	}
}

// Polling cannot read messages, and the relay says so.
func TestMessagesArePolledNever(t *testing.T) {
	t.Parallel()
	out, errs, code := command(t, nil, "config", "check", "-c", configFile(t, fmt.Sprintf(messagesConfig, "relay", "poll", "postgres://u@127.0.0.1/d", "http://127.0.0.1:1", "", adminKey)))
	if want := "message-prefix: needs source.mode: stream or auto"; code != 78 || !strings.Contains(out+errs, want) {
		t.Errorf("exit code %d, want 78 and %q:\n%s%s", code, want, out, errs)
	}
}
