package blackbox

import (
	"fmt"
	"strings"
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
  hooks: {type: webhook, url: %q, headers: {X-Type: '{type}', X-Group: '{group}'}, max-retries: 1, backoff: {initial: 50ms}, proof-wait: 1s}
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
// killed. One is refused, and one is no JSON: it becomes FAILED and holds up nothing. The full
// run:
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
			s.to.Script(s.answer)
			config := fmt.Sprintf(messagesConfig, nameFor(source), "stream", source, s.to.URL(), adminKey)
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
			if s.bad.Load() == nil {
				t.Error("the message to refuse has not arrived")
			}
			s.checkDoctor(config)
			t.Logf("%d messages of %d groups under %d kills; %d arrived again", s.rows, s.groups, kills, again)
			expectStop(t, r)
		})
	}
}

// Polling cannot read messages, and the relay says so.
func TestMessagesArePolledNever(t *testing.T) {
	t.Parallel()
	out, errs, code := command(t, nil, "config", "check", "-c", configFile(t, fmt.Sprintf(messagesConfig, "relay", "poll", "postgres://u@127.0.0.1/d", "http://127.0.0.1:1", adminKey)))
	if want := "message-prefix: needs source.mode: stream or auto"; code != 78 || !strings.Contains(out+errs, want) {
		t.Errorf("exit code %d, want 78 and %q:\n%s%s", code, want, out, errs)
	}
}
