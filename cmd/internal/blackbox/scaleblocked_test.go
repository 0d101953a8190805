package blackbox

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// A blocked group holds up no other group of its partition: its rows wait in the database, and the offset
// goes on. SLUICEBOX_TEST_ROWS replaces the number of rows behind it; 1000000 is a full run.
func TestScaleBlockedGroup(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		cluster := servers.Kafka(t, 1, map[string]string{"group.initial.rebalance.delay.ms": "0"})
		b := &blockedGroup{scene: newScene(t, postgresHost(version), fmt.Sprintf(
			"dispatch: {on-failed: block, max-retries: 0}\ncheckpoint: {max-hold: 1MiB}\nscale: {engine: kafka, brokers: [%q], topic: blocked, partitions: 1}\n", cluster.Addresses()[0]))}
		initTopic(t, b.config)
		b.exec(b.kind.business)
		rows := many(t, 15_000)
		b.r = b.run()
		log := &logWatch{s: b.scene}
		live := &pace{to: b.to, table: "outbox_events", first: 1_000_000_000, groups: 40}
		before50, before99 := b.paced(live, log)
		memory := b.r.resident()
		poison(b.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(1))
		const each = 5000
		for from := 1; from <= rows; from += each {
			b.number(from, min(from+each-1, rows), "'blocked'")
		}
		b.expectSpilled(rows - 1)
		log.most = 0
		with50, with99 := b.paced(live, log)
		t.Logf("p50 %s, with %d rows behind a blocked group of the same partition %s: %.2f times; p99 %s and %s: %.2f times; memory %d and %d MiB",
			before50, rows, with50, float64(with50)/float64(before50), before99, with99, float64(with99)/float64(before99), memory>>20, b.r.resident()>>20)
		log.expectWithin(16<<20, 0)
		if n := b.to.Counts().Distinct; n != live.written {
			t.Errorf("%d rows were accepted, want %d", n, live.written)
		}
		if peak := b.r.peak(); peak > 512<<20 { // it captures too, and the records for Kafka have their own buffer
			t.Errorf("peak memory %d MiB, want at most 512", peak>>20)
		}
		expectStop(t, b.r)
	})
}
