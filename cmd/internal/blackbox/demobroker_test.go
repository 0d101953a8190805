package blackbox

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// eachBroker runs a test with the address of each broker that benchmarks and quickstarts know, one
// after the other: their starts take much processor time. login is an address with a user.
func eachBroker(t *testing.T, test func(t *testing.T, address, login string)) {
	same := func(address string) (string, string) { return address, address }
	for name, start := range map[string]func(t *testing.T) (address, login string){
		"kafka": func(t *testing.T) (address, login string) {
			broker := servers.Kafka(t, 1, map[string]string{"super.users": "User:ANONYMOUS;User:relay"}).Brokers[0]
			return "kafka://" + broker.Address, "kafka://relay:" + servers.KafkaPassword + "@" + broker.SASL + "?mechanism=PLAIN"
		},
		"rabbitmq": func(t *testing.T) (address, login string) { return same(servers.RabbitMQ(t, nil).URL) },
		"nats":     func(t *testing.T) (address, login string) { return same(servers.NATS.Start(t, nil).URL) },
	} {
		t.Run(name, func(t *testing.T) {
			address, login := start(t)
			test(t, address, login)
		})
	}
}

// TestDemonstrationsOnBrokers: benchmarks and quickstarts send to a new topic of a broker. A
// benchmark runs beside a floor that does the same; SLUICEBOX_TEST_ROWS=200000 and -v show
// figures that mean something.
func TestDemonstrationsOnBrokers(t *testing.T) {
	t.Parallel()
	source := servers.Database(t, servers.Versions()[0])
	eachBroker(t, func(t *testing.T, address, login string) {
		for _, tc := range []struct{ flags, measure, address string }{
			{"--scenario latency --rate 100 --duration 500ms", "p50", login},
			{"--scenario drain --groups 50 --rows " + strconv.Itoa(many(t, 2000)), "drain", address},
		} {
			m := newMeasuring(t, source, append(strings.Fields(tc.flags), "--sink", tc.address, "--repeat", "1", "--json", "--against", "floor")...)
			res := m.result(t)
			res.expect(t, tc.measure, "floor")
			t.Log(m.stderr.String())
		}
		q := try(t, "", "--json", "--for", "1s", "--sink", login)
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
