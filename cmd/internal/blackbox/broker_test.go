package blackbox

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// toBroker routes the events of a scene to a broker. The keys of the sink are inserted.
const toBroker = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: bus}
sinks:
  bus: {%s, backoff: {initial: 20ms, max: 200ms}}
admin: {listen: %s}
`

// brokerScene is a relay that delivers to a broker.
type brokerScene struct {
	*scene
	relay   *relay
	written int
}

// brokerFault makes deliveries fail from its begin to its end.
type brokerFault struct{ begin, end func() }

// brokerFaults writes rows while the broker fails in each way and the relay is killed. messages
// returns the stored messages, in order. All rows are stored, the first arrivals of each
// group in order, and no row has paid for a fault. It returns how many are stored again.
func (s *scene) brokerFaults(keys string, faults []brokerFault, messages func() []sinktest.Received) (again int) {
	s.t.Helper()
	s.config = fmt.Sprintf(toBroker, nameFor(s.database), s.database, keys, adminKey)
	b := &brokerScene{scene: s}
	if d, text, code := doctor(s.t, s.config); code != 0 {
		s.t.Errorf("doctor ends with %d: %s\n%+v", code, text, d)
	}
	b.start()
	for range crashes(s.t, 1) {
		for _, f := range faults {
			b.write()
			b.fail(f.begin)
			f.end()
		}
		b.write()
		b.relay.kill()
		b.start()
	}
	b.write()
	awaitZero(s.t, "rows are not COMPLETED", func() int {
		return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
	})

	stored := messages()
	again = checkNumbered(s.t, stored)
	if len(stored)-again != b.written {
		s.t.Errorf("%d messages are stored, %d of them again, want %d", len(stored), again, b.written)
	}
	if left := none(s.t, s.conn, "paid for the faults", "SELECT count(*) FROM outbox_events WHERE retry_count > 0"); left != "" {
		s.t.Error(left)
	}
	s.t.Logf("%d rows, %d again", b.written, again)
	expectStop(s.t, b.relay)
	return again
}

func (b *brokerScene) start() {
	b.t.Helper()
	b.relay = start(b.t, b.config)
	b.relay.waitFor("source connected")
}

// write writes some rows in several transactions.
func (b *brokerScene) write() {
	b.t.Helper()
	for range 10 {
		n := 1 + rand.IntN(60)
		b.number(b.written+1, b.written+n, "i % 50")
		b.written += n
	}
}

// fail begins a fault and waits until a delivery fails as unavailable. A full disk may still have room
// for some rows, so it writes more of them until then.
func (b *brokerScene) fail(begin func()) {
	b.t.Helper()
	const failures, pause = `sluicebox_delivery_attempts_total{outcome="unavailable",sink="bus"}`, 2 * time.Second
	before := b.relay.metric(failures)
	begin()
	written := time.Time{}
	within(b.t, testTimeout, func() string {
		if time.Since(written) > pause {
			b.write()
			written = time.Now()
		}
		if b.relay.metric(failures) == before {
			return "no delivery fails"
		}
		return ""
	})
}
