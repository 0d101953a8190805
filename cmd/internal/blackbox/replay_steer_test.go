package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// slowly is a replay at a low rate.
type slowly struct {
	*scene
	r       *relay
	id      string
	rows    int // rows to send
	began   time.Time
	running time.Duration // total time in which it may send rows
}

// slowRate is the rate of a replay that must not finish before it is cancelled, in rows per
// second.
const slowRate = 2

// With polling no log is retained: a checkpoint is a time, and a replay from it reads the table
// and reports that. The replay obeys its rate limit. While it is paused, live rows and other
// replays proceed. It can be resumed and cancelled, and the metrics count it. By hand:
//
//	go test -v -run 'TestReplayWhilePolling' ./cmd/internal/blackbox
func TestReplayWhilePolling(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		const before, behind, gone = 20, 420, 10
		s.config = strings.Replace(s.config, "mode: stream", "mode: poll, poll-interval: 50ms, poll-backoff: {max: 100ms}", 1)
		r := s.run()
		s.number(1, before, "i % 10")
		s.expectNumbered(before)
		if out, why, code := r.sluicebox("checkpoint", "create", "kept", "--keep-log"); code != 64 || !strings.Contains(why, "this relay polls") {
			s.t.Errorf("--keep-log: exit code %d, want 64: %s%s", code, out, why)
		}
		if out, why, code := r.sluicebox("checkpoint", "create", "here"); code != 0 || !strings.Contains(out, "without a log position, because the relay polls") {
			s.t.Fatalf("checkpoint create: exit code %d, want 0: %s%s", code, out, why)
		}
		s.number(before+1, behind, "i % 10")
		s.expectNumbered(behind)
		if n, err := s.conn.exec("DELETE FROM outbox_events WHERE id IN (" + quoted(numbers(behind-gone+1, behind)...) + ")"); err != nil || n != gone {
			s.t.Fatalf("%d rows were deleted, %v", n, err)
		}
		rows := behind - gone - before
		slow := &slowly{scene: s, r: r, rows: rows}
		slow.begin()
		slow.pause()
		s.number(behind+1, behind+10, "i % 10")
		arrive(s.t, s.to, behind+10)
		s.untilCompleted("")
		jobs := r.replays([]string{"--from=here", "--group=3"}, []string{"--from=here", "--group=3", "--dry-run"}, []string{"--from=here", "--source=log"})
		expectTable(s.t, jobs[0], jobs[1], rows/10+1, "the relay polls")
		expectRefused(s.t, jobs[2], "cannot read the log as requested, because the relay polls")
		checkReplay(s.t, s.to.Accepted(), jobs[0].ID, endingIn("3", numbers(before+1, behind-gone), numbers(behind+1, behind+10)))
		slow.resume()
		slow.cancel()
		s.number(behind+11, behind+20, "i % 10")
		arrive(s.t, s.to, behind+20)
		s.untilCompleted("")
		r.controlOverHTTP(slow.id)
		expectStop(s.t, r)
	})
}

// endingIn returns the ids with a suffix.
func endingIn(end string, lists ...[]string) (ids []string) {
	for _, list := range lists {
		for _, id := range list {
			if strings.HasSuffix(id, end) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// arrived returns the number of replayed rows that arrived.
func (w *slowly) arrived() int {
	ids, twice := again(w.to.Accepted(), w.id)
	return len(ids) + twice
}

// begin starts the replay and waits for its first rows.
func (w *slowly) begin() {
	w.t.Helper()
	w.began = time.Now()
	w.id = w.r.detach("--from=here", fmt.Sprintf("--rate=%d", slowRate))
	w.more(0)
}

// more waits for more replayed rows, while live rows of a group wait.
func (w *slowly) more(than int) {
	w.t.Helper()
	within(w.t, testTimeout, func() string {
		if n := w.arrived(); n <= than {
			return fmt.Sprintf("%d rows came of the replay", n)
		}
		return ""
	})
	within(w.t, testTimeout, func() string {
		_, lanes := w.r.get("/api/v1/lanes")
		if !strings.Contains(lanes, `"state":"replaying"`) {
			return "no lane waits for the replay: " + lanes
		}
		return ""
	})
}

// held expects a state of the replay, and no more rows than its rate allows.
func (w *slowly) held(state string, left int) {
	w.t.Helper()
	w.running += time.Since(w.began)
	job := w.r.job(w.id)
	if job.State != state || job.Sent != w.arrived() || job.Remaining != left || job.Skipped+job.Refused > 0 {
		w.t.Errorf("the replay is %+v, and %d rows came", job, w.arrived())
	}
	// At each start it may send the rows of one second at once.
	if most := slowRate * (2 + 1 + w.running.Seconds()); float64(job.Sent) > most {
		w.t.Errorf("%d rows were sent in %s, %.0f at the most", job.Sent, w.running, most)
	}
	w.t.Logf("%d rows were sent in %s", job.Sent, w.running.Round(time.Millisecond))
	if n := w.r.metric(fmt.Sprintf("sluicebox_replay_state{state=%q}", state)); n != 1 {
		w.t.Errorf("metrics: the replay is not %s", state)
	}
	if n := w.r.metric("sluicebox_replay_remaining_rows"); int(n) != left {
		w.t.Errorf("the metrics say that %.0f rows are left of %+v", n, job)
	}
}

// pause pauses the replay.
func (w *slowly) pause() {
	w.t.Helper()
	out, why, code := w.r.sluicebox("replay", "pause", w.id)
	sent := w.arrived()
	if want := fmt.Sprintf("replay %s: paused; %d rows sent, %d left\n", w.id, sent, w.rows-sent); code != 0 || out != want {
		w.t.Errorf("replay pause: exit code %d: %s%s, want %s", code, out, why, want)
	}
	w.held("paused", w.rows-sent)
	if n := w.r.replayMetric("sent"); int(n) != sent {
		w.t.Errorf("the metrics say that %.0f rows were sent, want %d", n, sent)
	}
}

// resume resumes the replay, through the API.
func (w *slowly) resume() {
	w.t.Helper()
	sent := w.arrived()
	if job := w.r.job(w.id); job.State != "paused" || job.Sent != sent {
		w.t.Errorf("the replay is %+v, and %d rows came", job, sent)
	}
	w.began = time.Now()
	w.r.post("replays/resume", map[string]string{"job": w.id})
	w.more(sent)
}

// cancel cancels the replay, with the command that calls the relay's API.
func (w *slowly) cancel() {
	w.t.Helper()
	out, why, code := command(w.t, nil, "replay", "cancel", w.id, "--admin", w.r.admin)
	sent := w.arrived()
	if want := fmt.Sprintf("replay %s: cancelled; %d rows sent\n", w.id, sent); code != 0 || out != want {
		w.t.Errorf("replay cancel: exit code %d: %s%s, want %s", code, out, why, want)
	}
	w.held("cancelled", 0)
}

// controlOverHTTP compares the API's responses with the documentation. ended is an ended
// replay.
func (r *relay) controlOverHTTP(ended string) {
	r.t.Helper()
	job := fmt.Sprintf(`{"job": %q}`, ended)
	for _, c := range []struct {
		method, path, request string
		status                int
		says                  string
	}{
		{http.MethodPost, "replays/pause", job, http.StatusConflict, "the replay has ended: it is cancelled"},
		{http.MethodPost, "replays/resume", `{"job": "nobody"}`, http.StatusNotFound, "nobody"},
		{http.MethodPost, "replays/cancel", `{}`, http.StatusBadRequest, "job is required"},
		{http.MethodGet, "replays/errors?job=nobody", "", http.StatusNotFound, "nobody"},
		{http.MethodGet, "replays/errors?job=" + ended, "", http.StatusOK, `"errors":[]`},
		{http.MethodPost, "replays", `{"from": "nowhere"}`, http.StatusNotFound, "nowhere"},
		{http.MethodPost, "replays", `{"from": "here", "rate": -1}`, http.StatusBadRequest, "rate"},
		{http.MethodPost, "replays", `{"from": "here", "sink": "nowhere"}`, http.StatusBadRequest, "the sinks are flowcatalyst"},
		{http.MethodPost, "replays", `{"from": "here", "groups": []}`, http.StatusBadRequest, "groups is empty"},
		{http.MethodPost, "checkpoints", `{"name": "here"}`, http.StatusConflict, "already"},
		{http.MethodPost, "checkpoints", `{"name": "HERE"}`, http.StatusBadRequest, "HERE"},
		{http.MethodPost, "checkpoints/delete", `{"name": "nowhere"}`, http.StatusNotFound, "checkpoint not found"},
		{http.MethodPost, "checkpoints/delete", `{"name": "here"}`, http.StatusOK, ""},
	} {
		status, body := r.ask(c.method, "/api/v1/"+c.path, c.request)
		if status != c.status || !strings.Contains(body, c.says) {
			r.t.Errorf("%s %s: %d %s, want %d %s", c.path, c.request, status, body, c.status, c.says)
		}
	}
	within(r.t, testTimeout, func() string {
		var list struct{ Checkpoints []json.RawMessage }
		status, body := r.get("/api/v1/checkpoints")
		if err := json.Unmarshal([]byte(body), &list); err != nil || status != http.StatusOK || len(list.Checkpoints) > 0 {
			return fmt.Sprintf("the checkpoints: %d %s %v", status, body, err)
		}
		return ""
	})
}
