package blackbox

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestBenchOfBrokers: a benchmark sends to a new topic of a broker, beside a floor that does the
// same. SLUICEBOX_TEST_ROWS=200000 and -v show figures that mean something.
func TestBenchOfBrokers(t *testing.T) {
	t.Parallel()
	source := servers.Database(t, servers.Versions()[0])
	for name, start := range map[string]func(t *testing.T) (address string){
		"kafka": func(t *testing.T) string {
			return "kafka://" + strings.Join(servers.Kafka(t, 1, nil).Addresses(), ",")
		},
		"nats": func(t *testing.T) string { return servers.NATS.Start(t, nil).URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := start(t)
			for _, tc := range []struct{ flags, measure string }{
				{"--scenario latency --rate 100 --duration 500ms", "p50"},
				{"--scenario drain --groups 50", "drain"},
			} {
				flags := append(strings.Fields(tc.flags), "--sink", address, "--repeat", "1", "--json", "--against", "floor")
				if tc.measure == "drain" {
					flags = append(flags, "--rows", strconv.Itoa(many(t, 2000)))
				}
				m := newMeasuring(t, source, flags...)
				res := m.result(t)
				res.expect(t, tc.measure, "floor")
				t.Log(m.stderr.String())
			}
		})
	}
}
