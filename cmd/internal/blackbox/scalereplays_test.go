package blackbox

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// keepsDelivered is the layout of a fleet's outbox, but delivered rows stay in the table.
func keepsDelivered(database string) string {
	columns := "id: id, group: message_group, retry-count: retry_count, claimed: updated_at, error: error_message"
	order := "created_at"
	if database == "mongo" {
		columns = "id: _id, group: messageGroup, retry-count: retryCount, claimed: updatedAt, error: errorMessage"
		order = "createdAt"
	}
	return fmt.Sprintf("layout: custom, state: numbers, numbers: {pending: 0, processing: 9, completed: 1, failed: 3}, order-by: [%s], "+
		"columns: {%s, kind: type, payload: payload, status: status}", order, columns)
}

// Each shard replays the rows of its partition, and has checkpoints of its own. The commands write requests into the
// database, and the process that has the shard carries them out.
func TestScaleReplays(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, s *scaleFleet) {
		s.config = strings.Replace(s.config, "layout: outbox-messages", keepsDelivered(s.database), 1)
		testScaleReplays(t, s, true)
	})
}

// The topic still has rows that were deleted on delivery.
func TestScaleReplaysOfDeletedRows(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, s *scaleFleet) { testScaleReplays(t, s, false) })
}

// testScaleReplays replays all rows, from the table too if it keeps them.
func testScaleReplays(t *testing.T, s *scaleFleet, keeps bool) {
	const perGroup = 3
	s.start(0)
	s.hasAll(0)
	all := func(args ...string) (outs []string) { // for all shards at a time
		t.Helper()
		outs = make([]string, scalePartitions)
		var runs errgroup.Group
		for n := range scalePartitions {
			runs.Go(func() (err error) {
				out, errs, code := s.relays[0].sluicebox(append(args[:len(args):len(args)], "--source-name", strconv.Itoa(n))...)
				if outs[n] = out; code != 0 {
					err = fmt.Errorf("%s for shard %d exits with %d: %s%s", strings.Join(args, " "), n, code, out, errs)
				}
				return err
			})
		}
		if err := runs.Wait(); err != nil {
			t.Fatal(err)
		}
		return outs
	}
	all("checkpoint", "create", "before")
	for n := range perGroup {
		var rows []scaleKey
		for g := range scaleGroups {
			rows = append(rows, scaleKey{g, n + 1})
		}
		if err := s.table.insert(rows); err != nil {
			t.Fatal(err)
		}
	}
	s.settled(perGroup * scaleGroups)

	for _, since := range [][]string{{"--since", "1h"}, {"--from", "before"}} {
		source := "log"
		if since[1] == "1h" { // before the topic
			if source = "table"; !keeps {
				continue
			}
		}
		before, sent, shards := s.repeated(), 0, 0
		for _, out := range all(append([]string{"replay", "--json"}, since...)...) {
			var job struct {
				Sent   int
				Source string
			}
			if err := json.Unmarshal([]byte(out), &job); err != nil {
				t.Fatal(err)
			}
			if job.Source != source {
				t.Errorf("%v: the rows come from the %s, want the %s: %s", since, job.Source, source, out)
			}
			if sent += job.Sent; job.Sent > 0 {
				shards++
			}
		}
		if again := s.repeated() - before; sent != perGroup*scaleGroups || again != sent || shards < 2 {
			t.Errorf("%v: %d shards sent %d rows, %d arrived again, want %d of several", since, shards, sent, again, perGroup*scaleGroups)
		}
	}
	expectStop(t, s.relays[0])
}

// repeated is how many rows have arrived that had arrived before.
func (s *scaleFleet) repeated() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repeats
}
