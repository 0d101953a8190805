package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// numbers returns the ids of the numbers from..to, except some.
func numbers(from, to int, but ...string) (ids []string) {
	for n := from; n <= to; n++ {
		if id := numbered(n); !slices.Contains(but, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// again returns the replayed rows in the order of their first arrivals, and the number of
// repeated arrivals.
func again(taken []sinktest.Received, job string) (ids []string, twice int) {
	for _, got := range taken {
		switch {
		case got.Replay != job:
		case slices.Contains(ids, got.ID):
			twice++
		default:
			ids = append(ids, got.ID)
		}
	}
	return ids, twice
}

// groupOf returns the group in the payload of a numbered row.
func groupOf(t testing.TB, payload []byte) string {
	t.Helper()
	var p struct{ Group string }
	if err := json.Unmarshal(payload, &p); err != nil {
		t.Fatalf("payload %q: %v", payload, err)
	}
	return p.Group
}

// checkReplay compares the arrivals of a replay with the expected rows: each once, in order
// within its group, and without a live row of the group in between.
func checkReplay(t testing.TB, taken []sinktest.Received, job string, want []string) {
	t.Helper()
	ids, twice := again(taken, job)
	if sorted := slices.Sorted(slices.Values(ids)); twice > 0 || !slices.Equal(sorted, want) {
		t.Errorf("replay %s: %d rows, %d of them twice, want %d", job, len(ids), twice, len(want))
	}
	last, left := map[string]string{}, map[string]int{}
	for _, got := range taken {
		if got.Replay == job {
			left[groupOf(t, got.Payload)]++
		}
	}
	for _, got := range taken {
		g := groupOf(t, got.Payload)
		switch {
		case got.Replay == job:
			if got.ID <= last[g] {
				t.Errorf("replay %s, group %s: row %s arrived after row %s", job, g, got.ID, last[g])
			}
			last[g] = got.ID
			left[g]--
		case last[g] != "" && left[g] > 0:
			t.Errorf("replay %s, group %s: live row %s arrived with %d rows to come", job, g, got.ID, left[g])
		}
	}
}

// holding makes the receiver withhold its responses to replayed rows until go is called, and
// signals the first.
func holding(to *sinktest.Receiver) (first <-chan *sinktest.Request, letGo func()) {
	held, release, once := make(chan *sinktest.Request, 1), make(chan struct{}), sync.Once{}
	to.Script(func(req *sinktest.Request) sinktest.Answer {
		if req.Header.Get("Sluicebox-Replay") == "" {
			return sinktest.Answer{}
		}
		once.Do(func() { held <- req })
		return sinktest.Answer{Release: release}
	})
	return held, func() { close(release) }
}

// table returns the content of the rows up to a number, one line each.
func (s *scene) table(to int) []string {
	s.t.Helper()
	list, err := s.conn.texts(`SELECT id || ' ' || status || ' ' || retry_count || ' ' || coalesce(error_message, '') || ' ' || processed_at
		FROM outbox_events WHERE id <= $1 ORDER BY id`, numbered(to))
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// Rows after a checkpoint are sent again, each once and in order, including deleted ones. The
// live rows of their groups wait, others do not. The table does not change. Rows that the
// receiver refuses are listed, and their group continues. A dry run counts the same rows.
func TestReplay(t *testing.T) {
	t.Parallel()
	eachKind(t, "dispatch: {max-retries: 0}\n", func(s *scene) {
		const before, behind, live = 100, 600, 900
		r := s.run()
		s.number(1, before, "i % 10")
		s.expectNumbered(before)
		r.checkpoint("before", "--keep-log")
		s.number(before+1, behind, "i % 10")
		s.expectNumbered(behind)
		if n, err := s.conn.exec("DELETE FROM outbox_events WHERE id IN (" + quoted(numbers(301, 310)...) + ")"); err != nil || n != 10 {
			s.t.Fatalf("%d rows were deleted, want 10, %v", n, err)
		}
		was := s.table(behind)
		first, letGo := holding(s.to)
		id := r.detach("--from=before")
		held := groupOf(s.t, (<-first).Items[0].Payload)
		s.number(behind+1, live, "i % 10")
		captured := fmt.Sprintf("sluicebox_rows_captured_total{outbox=%q}", "outbox_events")
		within(s.t, testTimeout, func() string {
			if n := r.metric(captured); n < live {
				return fmt.Sprintf("%.0f rows are captured", n)
			}
			return ""
		})
		letGo()
		job := r.untilDone(id)
		if job.Sent != behind-before || job.Skipped+job.Refused+job.Remaining > 0 || job.Source != "log" || !strings.Contains(job.Reason, "after checkpoint before") {
			s.t.Errorf("the replay is %+v", job)
		}
		arrive(s.t, s.to, live)
		taken := s.to.Accepted()
		checkReplay(s.t, taken, id, numbers(before+1, behind))
		if n := checkNumbered(s.t, taken); n != behind-before {
			s.t.Errorf("%d rows arrived again", n)
		}
		transcript := slices.IndexFunc(taken, func(got sinktest.Received) bool {
			return got.ID > numbered(behind) && groupOf(s.t, got.Payload) == held
		})
		over := slices.IndexFunc(taken, func(got sinktest.Received) bool {
			return got.Replay == id && groupOf(s.t, got.Payload) == held && got.ID == lastOf(held, behind)
		})
		if transcript < over {
			s.t.Errorf("live rows of group %s arrived at %d, before its replay was over at %d", held, transcript, over)
		}
		if now := s.table(behind); !slices.Equal(now, was) {
			s.t.Error("the replay changed rows")
		}
		s.untilCompleted("")
		s.refusedReplay(r, before, live)
		s.countedReplays(r, live)
		expectStop(s.t, r)
	})
}

// lastOf returns the last row of a group up to a number. The group is the last digit.
func lastOf(group string, to int) string {
	for ; !strings.HasSuffix(numbered(to), group); to-- {
		continue
	}
	return numbered(to)
}

// refusedReplay replays a group in which the receiver refuses two rows.
func (s *scene) refusedReplay(r *relay, before, to int) {
	s.t.Helper()
	was := s.table(to)
	bad := []string{numbered(before + 14), numbered(before + 34)}
	s.to.Script(func(req *sinktest.Request) sinktest.Answer {
		for _, id := range req.IDs() {
			if slices.Contains(bad, id) && req.Header.Get("Sluicebox-Replay") != "" {
				return sinktest.Answer{Status: http.StatusUnprocessableEntity, Body: []byte(`{"error":"not again"}`)}
			}
		}
		return sinktest.Answer{}
	})
	job := r.replay("--from=before", "--group=4")
	s.to.Script(nil)
	if job.code != 1 || job.State != "done" || job.Refused != 2 || job.Sent != (to-before)/10-2 || !strings.Contains(job.stderr, "2 rows refused") {
		s.t.Errorf("the replay is %+v", job)
	}
	checkReplay(s.t, s.to.Accepted(), job.ID, slices.DeleteFunc(numbers(before+1, to, bad...), func(id string) bool { return !strings.HasSuffix(id, "4") }))
	stdout, stderr, code := r.sluicebox("replay", "errors", job.ID)
	if code != 0 || strings.Count(stdout, "\n") != 3 || !strings.Contains(stdout, bad[0]) || !strings.Contains(stdout, bad[1]) || !strings.Contains(stdout, "422") {
		s.t.Errorf("replay errors: exit code %d, want 0: %s%s", code, stdout, stderr)
	}
	if now := s.table(to); !slices.Equal(now, was) {
		s.t.Error("the replay changed rows")
	}
	if n := r.replayMetric("refused"); n != 2 {
		s.t.Errorf("%.0f refused rows are counted, want 2", n)
	}
}

// countedReplays compares the counts of dry runs with the rows sent, for several filters. One
// row is FAILED, and some have no group.
func (s *scene) countedReplays(r *relay, to int) {
	s.t.Helper()
	bad := numbered(to + 5)
	poison(s.to, sinktest.Answer{Status: http.StatusBadRequest}, bad)
	s.number(to+1, to+20, "nullif(i, i)")
	within(s.t, testTimeout, func() string {
		if f := s.rowState(bad); f.status != "FAILED" {
			return fmt.Sprintf("the row is %+v", f)
		}
		return ""
	})
	s.to.Script(nil)
	s.untilCompleted(bad)
	filters := []struct {
		args          string
		sent, skipped int // -1: depends on the times in the table
	}{
		{"--from=before --no-group", 19, 1},
		{"--from=before --group=3 --group=7 --kind=EVENT --outbox=outbox_events", 160, 0},
		{"--from=before --id=" + numbered(to) + " --id=" + bad + " --id=" + numbered(1), 1, 1},
		{"--from=before --kind=DISPATCH_JOB", 0, 0},
		{"--since=1h --source=table --group=4", -1, 0},
	}
	args := make([][]string, len(filters))
	for i, filter := range filters {
		args[i] = append(strings.Fields(filter.args), "--dry-run")
	}
	dries := r.replays(args...)
	for i, dry := range dries {
		if want := filters[i]; dry.code != 0 || dry.Sent > 0 || want.sent >= 0 && (dry.Remaining != want.sent || dry.Skipped != want.skipped) {
			s.t.Errorf("%s: the dry run is %+v", want.args, dry)
		}
		if ids, _ := again(s.to.Accepted(), dry.ID); len(ids) > 0 {
			s.t.Errorf("%s: the dry run sent %q", filters[i].args, ids)
		}
		args[i] = append(strings.Fields(filters[i].args), "--until="+dry.UntilAt)
	}
	for i, job := range r.replays(args...) {
		dry, filter := dries[i], filters[i]
		ids, twice := again(s.to.Accepted(), job.ID)
		if job.code != 0 || job.Sent != dry.Remaining || job.Skipped != dry.Skipped || len(ids) != job.Sent || twice > 0 {
			s.t.Errorf("%s: the dry run is %+v, the replay %+v; %d rows arrived", filter.args, dry, job, len(ids))
		}
		if filter.sent < 0 && job.Sent < 10 {
			s.t.Errorf("%s: the test is inconclusive: %+v", filter.args, job)
		}
	}
	if n := r.replayMetric("skipped"); n != 2 { // a dry run skips no row
		s.t.Errorf("%.0f skipped rows are counted, want 2", n)
	}
}

// untilCompleted waits until every row is COMPLETED, except one.
func (s *scene) untilCompleted(but string) {
	s.t.Helper()
	awaitZero(s.t, "rows are not COMPLETED", func() int {
		return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED' AND id <> $1", but)
	})
}
