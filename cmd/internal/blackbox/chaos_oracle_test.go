package blackbox

import (
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	checker "github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// verdict is what the oracle says of a phase.
type verdict struct {
	*checker.Report
	wrongFailed []string // FAILED, though they can be delivered
	ghosts      []string // arrived, though nothing committed them
	// unexplained are rows that arrived again, though no fault ran when they had arrived before.
	unexplained []string
	since       time.Time      // when the first of them had arrived before
	lateCopies  int            // arrivals again of rows of earlier phases
	again       map[string]int // arrivals beyond the first, by the kind of fault that explains them
	most        int            // bound of again: rows that arrived while a fault ran, or just before
}

// undone is how long before a fault a row may have been answered whose outcome the fault undoes. PostgreSQL
// commits outcomes asynchronously; a relay writes them within a second. inFlight is how long before a fault
// it may have arrived: its answer is not late, but may have taken up to lateAnswer.
const (
	undone   = 2 * time.Second
	inFlight = lateAnswer + undone
)

// answeredLate explains, in place of a fault, that rows arrive again; see lateAnswer.
const answeredLate = "no fault: answered after 1 s"

// faultWindow is when a fault explains that rows arrive again: until everything is as before.
type faultWindow struct {
	kinds       []string
	from, until time.Time
}

func (w faultWindow) has(at time.Time) bool {
	return at.After(w.from.Add(-inFlight)) && at.Before(w.until.Add(undone))
}

// judge joins what was committed with what arrived and with the states of the tables.
func (w *truth) judge(states map[string]string, windows []faultWindow) *verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := &verdict{again: map[string]int{}}
	check := checker.New(checker.Options{})
	for _, r := range w.order {
		row := checker.Row{ID: r.id, Lane: r.lane(), Order: r.n, Sum: sumOf([]byte(r.payload)), State: checker.Owed}
		if r.noOrder {
			row.Lane = ""
		}
		switch states[r.id] {
		case "COMPLETED":
			row.State = checker.Completed
		case "FAILED":
			row.State = checker.Failed
			if !r.mayFail {
				v.wrongFailed = append(v.wrongFailed, r.id)
			}
		}
		check.Row(row)
		for _, copied := range w.copiesOf(r, row) {
			check.Row(copied)
		}
	}
	latest := map[string]time.Time{}
	for _, a := range w.arrivals {
		if of, is := w.retired[w.hash(a.id)]; is {
			v.late(a, of, windows)
			continue
		}
		check.Arrive(checker.Arrival{ID: a.id, At: a.at, Sum: a.sum, Source: w.sourceOf(a.id)})
		if w.rows[original(a.id)] == nil {
			v.ghosts = append(v.ghosts, a.id)
		}
		before, is := latest[a.id]
		latest[a.id] = a.at
		of := windowOf(windows, before, a.at)
		switch {
		case !is:
			if w.lates[a.id] || windowOf(windows, a.at, a.at.Add(inFlight)) >= 0 {
				v.most++
			}
		case of < 0 && w.lates[a.id]:
			v.again[answeredLate]++
		case of < 0:
			v.unexplain(before, "%s at %s and %s", a.id, before.Format(time.StampMilli), a.at.Format(time.StampMilli))
		default:
			v.again[strings.Join(windows[of].kinds, " and ")]++
		}
	}
	v.Report = check.Report()
	v.Duplicates += v.lateCopies
	return v
}

// unexplain notes a row that arrived again without a cause, and when it had arrived before.
func (v *verdict) unexplain(before time.Time, format string, args ...any) {
	if v.since.IsZero() || before.Before(v.since) {
		v.since = before
	}
	v.unexplained = append(v.unexplained, fmt.Sprintf(format, args...))
}

// late judges an arrival of a row that an earlier phase settled.
func (v *verdict) late(a chaosArrival, of int32, windows []faultWindow) {
	switch of {
	case retiredLost:
	case retiredLate:
		v.lateCopies++
		v.again[answeredLate]++
	case retiredCalm:
		v.lateCopies++
		v.unexplain(a.at, "%s in an earlier phase and at %s", a.id, a.at.Format(time.StampMilli))
	default:
		v.lateCopies++
		v.again[strings.Join(windows[of].kinds, " and ")]++
	}
}

// What retire notes in place of a window's index.
const (
	retiredCalm = -1 - iota // no fault explains that the row arrives again
	retiredLost             // it had not arrived, which was judged
	retiredLate             // it was answered late
)

func (w *truth) hash(id string) uint64 { return maphash.String(w.seed, id) }

// retire forgets a phase that was judged, except for which fault explains that a row arrives again. So a
// run may take hours.
func (w *truth) retire(windows []faultWindow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.order {
		w.retired[w.hash(r.id)] = retiredLost
		for _, copied := range w.copiesOf(r, checker.Row{ID: r.id}) {
			w.retired[w.hash(copied.ID)] = retiredLost
		}
	}
	now := time.Now()
	for _, a := range w.arrivals {
		if key := w.hash(a.id); w.retired[key] == retiredLost { // else it came again, which was judged
			w.retired[key] = int32(windowOf(windows, a.at, now))
			if w.retired[key] == retiredCalm && w.lates[a.id] {
				w.retired[key] = retiredLate
			}
		}
	}
	w.order, w.arrivals, w.oldest = nil, nil, 0
	clear(w.rows)
	clear(w.arrived)
	clear(w.lates)
}

// first is when the oldest row of the phase was created.
func (w *truth) first() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := time.Now()
	for _, r := range w.order {
		if r.at.Before(first) {
			first = r.at
		}
	}
	return first
}

// windowOf returns the index of the latest fault that explains that a row arrived at one time and again at
// another, or retiredCalm.
func windowOf(windows []faultWindow, at, again time.Time) int {
	for i, w := range slices.Backward(windows) {
		if w.has(at) && w.from.Before(again) {
			return i
		}
	}
	return retiredCalm
}

// wrongs lists what breaks an invariant.
func (v *verdict) wrongs() (wrongs []string) {
	for _, f := range v.Findings {
		if f.Kind != checker.Duplicate {
			wrongs = append(wrongs, fmt.Sprintf("%s: %s of %s, behind %q, arrived %d times", f.Kind, f.ID, f.Lane, f.Behind, f.Arrivals))
		}
	}
	for what, ids := range map[string][]string{"FAILED though it can be delivered": v.wrongFailed, "never committed": v.ghosts, "arrived again without a fault": v.unexplained} {
		for i, id := range ids {
			if i == 20 {
				wrongs = append(wrongs, fmt.Sprintf("%s: %d in all", what, len(ids)))
				break
			}
			wrongs = append(wrongs, what+": "+id)
		}
	}
	return wrongs
}

// states reads the tables until the database answers.
func (c *chaos) states() map[string]string {
	c.t.Helper()
	states, since := map[string]string{}, c.first()
	within(c.t, testTimeout, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return failure(c.store.states(ctx, since, func(id, state string) { states[id] = state }))
	})
	return states
}

// The oracle finds a lost row, a swap, a lie of the table, a changed body, a row that arrives again without a
// fault, one that is FAILED for nothing, and one that was rolled back.
func TestFaultOracle(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		plant func(w *truth, states map[string]string)
		want  string // in the wrongs; "": none
	}{
		"clean": {func(*truth, map[string]string) {}, ""},
		"lost": {func(w *truth, states map[string]string) {
			w.arrivals = w.arrivals[:9]
			states[w.order[9].id] = "PROCESSING"
		}, "lost: E0000100000010"},
		"lie": {func(w *truth, _ map[string]string) { w.arrivals = w.arrivals[:9] }, "false_completed: E0000100000010"},
		"swap": {func(w *truth, _ map[string]string) {
			w.arrivals[3].id, w.arrivals[4].id = w.arrivals[4].id, w.arrivals[3].id
			w.arrivals[3].sum, w.arrivals[4].sum = w.arrivals[4].sum, w.arrivals[3].sum
		}, "out_of_order: E0000100000004"},
		"body":             {func(w *truth, _ map[string]string) { w.arrivals[3].sum = "00" }, "body_differs: E0000100000004"},
		"FAILED":           {func(w *truth, states map[string]string) { states[w.order[2].id] = "FAILED" }, "FAILED though it can be delivered: E0000100000003"},
		"gap":              {func(w *truth, states map[string]string) { states[w.order[2].id] = "FAILED"; w.order[2].mayFail = true }, ""},
		"ghost":            {func(w *truth, _ map[string]string) { w.accept("E2", nil, false) }, "never committed: E2"},
		"again in a fault": {func(w *truth, _ map[string]string) { w.accept(w.order[0].id, []byte(w.order[0].payload), false) }, ""},
		"again, without fault": {func(w *truth, _ map[string]string) {
			w.arrivals[0].at = time.Now().Add(-time.Hour)
			w.accept(w.order[0].id, []byte(w.order[0].payload), false)
		}, "arrived again without a fault: E0000100000001"},
		"again, after a late answer": {func(w *truth, _ map[string]string) {
			w.arrivals[0].at = time.Now().Add(-time.Hour)
			w.late([]string{w.order[0].id})
			w.accept(w.order[0].id, []byte(w.order[0].payload), false)
		}, ""},
		"again in the next phase, after a late answer": {func(w *truth, states map[string]string) {
			w.arrivals[0].at = time.Now().Add(-time.Hour)
			id, body := w.order[0].id, w.order[0].payload
			w.late([]string{id})
			w.retire(nil)
			clear(states)
			w.accept(id, []byte(body), false)
		}, ""},
		"again in the next phase, without fault": {func(w *truth, states map[string]string) {
			w.arrivals[0].at = time.Now().Add(-time.Hour)
			id, body := w.order[0].id, w.order[0].payload
			w.retire(nil)
			clear(states)
			w.accept(id, []byte(body), false)
		}, "arrived again without a fault: E0000100000001"},
		"replayed": {func(w *truth, _ map[string]string) { w.accept(w.order[0].id, []byte(w.order[0].payload), true) }, ""},
	} {
		w, states := newTruth(), map[string]string{}
		for range 10 {
			r := w.row(1, false)
			w.commit([]*chaosRow{r})
			w.accept(r.id, []byte(r.payload), false)
			states[r.id] = "COMPLETED"
		}
		tt.plant(w, states)
		now := time.Now()
		v := w.judge(states, []faultWindow{{[]string{"a fault"}, now.Add(-time.Second), now}})
		got := strings.Join(v.wrongs(), "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
		if again := v.again["a fault"]; again != 0 != (name == "again in a fault") {
			t.Errorf("%s: %d arrived again in the fault", name, again)
		}
	}
}

// A receiver that accepts a row and answers after the client has given the request up gets the row again, without
// any fault. The receiver notes the row as answered late, and notes no row that it answered at once.
func TestFaultReceiverAnswersLate(t *testing.T) {
	t.Parallel()
	w := newTruth()
	to, receiver := sinktest.NewReceiver(t), &chaosReceiver{truth: w, effects: &effects{n: map[string]int{}}}
	release := make(chan struct{})
	slow := sinktest.Script(func(*sinktest.Request) sinktest.Answer {
		return sinktest.Answer{Status: http.StatusCreated, Release: release}
	})
	to.Script(receiver.answer)
	send := func(r *chaosRow, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		body := fmt.Sprintf(`[{"id": %q}]`, r.id)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL()+"/api/events/batch", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	prompt, late := w.row(1, false), w.row(1, false)
	if err := send(prompt, testTimeout); err != nil {
		t.Fatal(err)
	}
	receiver.behave.Store(&slow)
	if err := send(late, 100*time.Millisecond); err == nil {
		t.Fatal("the client got an answer before its timeout")
	}
	within(t, testTimeout, func() string { // the server notices that the client has gone
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.lates[late.id] || w.lates[prompt.id] {
			return fmt.Sprintf("answered late are %v, want %s alone", w.lates, late.id)
		}
		return ""
	})
}
