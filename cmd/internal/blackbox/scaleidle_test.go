package blackbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// What idle shards cost the database, beside an idle relay of one partition: sessions, and transactions in a second.
// The figures are in the log of the test.
func TestScaleIdleShards(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		cluster := servers.Kafka(t, 1, map[string]string{"group.initial.rebalance.delay.ms": "0"})
		for _, partitions := range []int{1, 64} {
			server := servers.Start(t, version, map[string]string{"max_connections": "1500"})
			s := sceneIn(t, postgresHost(version), server.URL, fmt.Sprintf(
				"scale: {engine: kafka, brokers: [%q], topic: idle%d, partitions: %d}\n", cluster.Addresses()[0], partitions, partitions))
			initTopic(t, s.config)
			r := start(t, s.config)
			r.waitFor("shards assigned")
			within(t, testTimeout, func() string {
				if n := leads(r); n < partitions {
					return fmt.Sprintf("%d of %d shards work", n, partitions)
				}
				return ""
			})
			last, since := "", time.Now()
			within(t, testTimeout, func() string { // those of the start end after 30 s
				if _, now := sessionsByPurpose(t, s.conn); now != last {
					last, since = now, time.Now()
				}
				if steady := time.Since(since); steady < 35*time.Second {
					return fmt.Sprintf("%d shards: %s for %s", partitions, last, steady)
				}
				return ""
			})
			transactions := func() int {
				return count(t, s.conn, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
			}
			const look = 10 * time.Second
			busy, before := r.busy(), transactions()
			time.Sleep(look) // the time over which the use is measured
			_, text := sessionsByPurpose(t, s.conn)
			t.Logf("%d shards: %s, %.1f transactions/s, %d MiB, %.1f %% of a processor", partitions, text,
				float64(transactions()-before)/look.Seconds(), r.resident()>>20, (r.busy()-busy)/look.Seconds()*100)
			expectStop(t, r)
		}
	})
}
