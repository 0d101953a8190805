package blackbox

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// eachBroker runs a test with the address of each broker that benchmarks and quickstarts know, one
// after the other: their starts take much processor time.
func eachBroker(t *testing.T, test func(t *testing.T, address string)) {
	for name, start := range map[string]func(t *testing.T) (address string){
		"kafka": func(t *testing.T) string {
			return "kafka://" + strings.Join(servers.Kafka(t, 1, nil).Addresses(), ",")
		},
		"rabbitmq": func(t *testing.T) string { return servers.RabbitMQ(t, nil).URL },
		"nats":     func(t *testing.T) string { return servers.NATS.Start(t, nil).URL },
	} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

// TestDemonstrationsOnBrokers: benchmarks and quickstarts send to a new topic of a broker. A
// benchmark runs beside a floor that does the same; SLUICEBOX_TEST_ROWS=200000 and -v show
// figures that mean something.
func TestDemonstrationsOnBrokers(t *testing.T) {
	t.Parallel()
	source := servers.Database(t, servers.Versions()[0])
	eachBroker(t, func(t *testing.T, address string) {
		for _, tc := range []struct{ flags, measure string }{
			{"--scenario latency --rate 100 --duration 500ms", "p50"},
			{"--scenario drain --groups 50 --rows " + strconv.Itoa(many(t, 2000)), "drain"},
		} {
			m := newMeasuring(t, source, append(strings.Fields(tc.flags), "--sink", address, "--repeat", "1", "--json", "--against", "floor")...)
			res := m.result(t)
			res.expect(t, tc.measure, "floor")
			t.Log(m.stderr.String())
		}
		q := try(t, "", "--json", "--for", "1s", "--sink", address)
		if code := q.exitCode(); code != 0 {
			t.Fatalf("exit code %d, want 0", code)
		}
		var got outcome
		if err := json.Unmarshal(q.stdout.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Committed < 20 || got.Delivered != got.Committed || got.Duplicates+got.OutOfOrder+got.Failed > 0 || got.P50 <= 0 {
			t.Errorf("got %+v", got)
		}
		q.expectNothingLeft(t, "", nil)
	})
}
