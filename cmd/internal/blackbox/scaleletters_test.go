package blackbox

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// FAILED rows of all shards are listed. A shard requeues those of its partition, which then arrive.
func TestScaleDeadLetters(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, s *scaleFleet) {
		s.config = strings.Replace(s.config, "request-timeout: 5s", "request-timeout: 5s, max-retries: 0", 1)
		s.refuses.Store(true)
		s.start(0)
		s.hasAll(0)
		var rows []scaleKey
		for g := range scaleGroups {
			rows = append(rows, scaleKey{g, 1})
		}
		if err := s.table.insert(rows); err != nil {
			t.Fatal(err)
		}
		within(t, testTimeout, func() string {
			out, errs, _ := s.relays[0].sluicebox("deadletters", "list")
			if n := strings.Count(out, "EVENT"); n != scaleGroups {
				return fmt.Sprintf("%d FAILED rows are listed, want %d: %s", n, scaleGroups, errs)
			}
			return ""
		})
		s.refuses.Store(false)
		requeued, shards := 0, 0
		for n := range scalePartitions {
			out, errs, code := s.relays[0].sluicebox("deadletters", "requeue", "--all", "--yes", "--json", "--source-name", strconv.Itoa(n))
			var result struct{ Outboxes []struct{ Done int } }
			if err := json.Unmarshal([]byte(out), &result); err != nil || code != 0 || len(result.Outboxes) != 1 {
				t.Fatalf("requeue of shard %d exits with %d: %s%s", n, code, out, errs)
			}
			if requeued += result.Outboxes[0].Done; result.Outboxes[0].Done > 0 {
				shards++
			}
		}
		if requeued != scaleGroups || shards < 2 {
			t.Errorf("%d rows of %d shards were requeued, want %d of several", requeued, shards, scaleGroups)
		}
		s.settled(scaleGroups)
		expectStop(t, s.relays[0])
	})
}
