package dispatch

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/store"
)

// lateModel is the model of fresh rows and of late claims.
type lateModel struct {
	late     bool                       // fresh rows may go unclaimed at all
	allowed  bool                       // and now
	lateRows []*row                     // being claimed late
	writes   [pending.Writers]time.Time // when each write of outcomes in flight began
}

// freshness is what the model knows of a row that the log has just brought.
type freshness struct {
	seq          store.Seq
	freshUntil   time.Time
	waited       bool // its lane was on hold since
	tries        int  // requests that carried it
	unclaimed    bool // it was sent before it was claimed
	read         bool // it was found untried in the table
	readUntil    time.Time
	lateClaiming bool // it is being claimed late

	// lateTried: a late claim was answered for good. lateDue is when the next may go.
	lateTried bool
	lateDue   time.Time
}

// TestLateClaimsAgainstModel is TestCoreAgainstModel with the actions that concern fresh rows, so
// that most requests go unclaimed and many are claimed late.
func TestLateClaimsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newCoreModel(t)
		w.late, w.unclaimed = true, false
		w.start()
		actions := map[string]func(*rapid.T){
			"append":        w.appendRows,
			"start fresh":   w.startFresh,
			"claim":         w.claim,
			"answer claims": w.answerClaims,
			"answer":        w.answer,
			"take outcomes": w.takeOutcomes,
			"write":         w.write,
			"little time":   w.littleTime,
			"interfere":     w.interfere,
			"lock":          w.lockTable,
			"await":         w.await,
			"pause":         w.pauseLane,
			"let go":        w.releaseHold,
			"skip":          w.skip,
			"lose lease":    w.loseLease,
			"end":           seldom(w.end),
			"crash":         seldom(w.start),
		}
		for _, often := range []string{"start fresh", "claim", "answer", "take outcomes", "little time"} {
			actions[often+" more"] = actions[often]
		}
		t.Repeat(actions)
		w.finish(t)
	})
}

// mayGoUnclaimed reports whether a row may be sent before it is claimed.
func (w *coreModel) mayGoUnclaimed(r *record) bool {
	return r.freshUntil.After(w.now) && !r.waited && r.tries == 0 && r.taken != w.epoch && r.skipped == nil && !r.requeued
}

// appendFresh appends rows that the log has just brought, with their age.
func (w *coreModel) appendFresh(t *rapid.T, rows []*record) {
	until := w.now.Add(time.Duration(rapid.IntRange(-100, 1000).Draw(t, "fresh for")) * time.Millisecond)
	for _, r := range rows {
		w.lastSeq++
		r.seq, r.freshUntil = w.lastSeq, until
	}
	w.enterRows(func(items []store.Item, b Ticket) { w.core.appendFresh(items, b, until) }, rows...)
}

// startFresh begins requests with fresh rows, maybe while a claim is in flight.
func (w *coreModel) startFresh(*rapid.T) {
	w.core.late.start(w.now)
	w.send()
	w.check()
}

func (w *coreModel) permit(*rapid.T) { w.allowed = !w.allowed }

// littleTime passes less time than a row is fresh.
func (w *coreModel) littleTime(t *rapid.T) {
	w.sleep(time.Duration(rapid.IntRange(1, 150).Draw(t, "ms")) * time.Millisecond)
}

// checkUnclaimed checks a request that is sent before its rows are claimed.
func (w *coreModel) checkUnclaimed(req *request) {
	if isProbe(req) || req.Job() != nil {
		w.t.Fatalf("an unclaimed request; probe %v, job %v", isProbe(req), req.Job())
	}
	if !req.Checks { // otherwise it was checked when it was begun
		w.checkPermission("sent")
		w.checkShare(req)
		w.checkRequest(req, false)
	}
	for rw := range req.Rows() {
		rec := w.of(rw)
		if may := w.mayGoUnclaimed(rec); !may && !req.Checks || req.Checks && !rec.readUntil.After(w.now) {
			w.t.Fatalf("row %s is sent unclaimed at %v: %+v, taken in epoch %d of %d", rec.id, w.now, rec.freshness, rec.taken, w.epoch)
		}
		rec.unclaimed, rec.lateTried, rec.lateDue = true, false, w.now.Add(lanes.ClaimAfter)
	}
}

// checkPermission checks that rows may go unclaimed now.
func (w *coreModel) checkPermission(what string) {
	if !w.late || !w.allowed || w.frozen {
		w.t.Fatalf("an unclaimed request is %s; late %v, allowed %v, frozen %v", what, w.late, w.allowed, w.frozen)
	}
	for _, began := range w.writes {
		if !began.IsZero() && w.now.Sub(began) >= lanes.ClaimAfter {
			w.t.Fatalf("an unclaimed request is %s at %v, while outcomes are being written since %v", what, w.now, began)
		}
	}
	unwritten := -len(w.writing[0]) - len(w.writing[1])
	for range w.core.unwrittenOutcomes() {
		unwritten++
	}
	if most := w.cfg.MaxConcurrentGroups * w.cfg.APIBatchSize; unwritten > most {
		w.t.Fatalf("an unclaimed request is %s with %d outcomes that wait, want at most %d", what, unwritten, most)
	}
}

// checkChecks checks a request whose rows are to be read instead of claimed.
func (w *coreModel) checkChecks(req *request) {
	if !req.Checks {
		return
	}
	w.checkPermission("read")
	for rw := range req.Rows() {
		rec := w.of(rw)
		if w.unclaimed || isProbe(req) || rec.job != "" || rec.waited || rec.read || rec.dropped || rec.tries > 0 || rec.taken == w.epoch || rec.skipped != nil || rec.requeued {
			w.t.Fatalf("row %s is read instead of claimed: %+v", rec.id, rec)
		}
	}
}

// answerCheck reads the rows of a request, and reports whether it goes on.
func (w *coreModel) answerCheck(t *rapid.T, req *request) (goesOn bool) {
	var untried []bool
	for rw := range req.Rows() {
		rec := w.of(rw)
		untried = append(untried, rec.visible && !rec.settled() && rec.retries == 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0)
	}
	at := w.now.Add(-time.Duration(rapid.IntRange(0, 50).Draw(t, "read for")) * time.Millisecond)
	if goesOn = !slices.Contains(untried, false); goesOn {
		for rw := range req.Rows() {
			rec := w.of(rw)
			rec.read, rec.readUntil = true, at.Add(time.Second)
		}
	}
	if w.core.late.checked(req, untried, at, w.now) != goesOn {
		t.Fatalf("untried %v: the request goes on %v", untried, !goesOn)
	}
	w.allow()
	return goesOn
}

// waitsForOutcomes reports whether lanes wait until outcomes are written, so that their rows need no claim.
func (w *coreModel) waitsForOutcomes() bool {
	return w.core.lanes.Requests.Fresh.Wait && w.late && len(w.writing[0])+len(w.writing[1])+w.core.unwrittenCount() > 0
}

// waitsForSender reports whether a ready lane waits for a sender to send its head unclaimed.
func (w *coreModel) waitsForSender() bool {
	if !w.late || len(w.sending)+len(w.core.unsent()) < w.cfg.MaxConcurrentGroups {
		return false
	}
	return slices.ContainsFunc(w.core.endpoints(), func(recv *receiver) bool {
		ready := readyLanes(recv)
		return len(ready) > 0 && len(ready[0].Rows) > 0 && ready[0].Job == nil && w.mayGoUnclaimed(w.of(ready[0].Rows[0]))
	})
}

// claimLate takes the rows to claim late. Their requests are unanswered for lanes.ClaimAfter.
func (w *coreModel) claimLate(most int) {
	w.lateRows = w.core.late.next(most, w.now)
	for _, rw := range w.lateRows {
		rec := w.of(rw)
		i := slices.IndexFunc(w.sending, func(req *request) bool { return slices.Contains(slices.Collect(req.Rows()), rw) })
		if i < 0 || w.now.Sub(w.sending[i].Started) < lanes.ClaimAfter || !rec.unclaimed || rec.lateClaiming || w.ended || w.known[rec.key.Outbox] {
			w.t.Fatalf("row %s is claimed late, by request %d; ended %v, table locked %v: %+v", rec.id, i, w.ended, w.known[rec.key.Outbox], rec.freshness)
		}
		rec.lateClaiming = true
	}
	if len(w.lateRows) > 0 || w.ended || w.unclaimed {
		return
	}
	for _, req := range w.sending {
		for rw := range req.Rows() {
			rec := w.of(rw)
			switch {
			case !req.Unclaimed || rec.lateTried || w.now.Before(rec.lateDue):
			case w.known[rec.key.Outbox]:
				rec.lateDue = w.now.Add(lanes.ClaimAfter)
			default:
				w.t.Fatalf("row %s is not claimed at %v, but its request was sent at %v: %+v", rec.id, w.now, req.Started, rec.freshness)
			}
		}
	}
}

// answerLate answers the late claims. No answer changes a lane, so the row stays in its place.
func (w *coreModel) answerLate(t *rapid.T) {
	var answers []store.ClaimAnswer
	for _, rw := range w.lateRows {
		rec := w.of(rw)
		taken := rec.taken // such a claim comes too late for the attempt
		a := w.answerClaim(t, rec, rw)
		rec.taken, rec.lateClaiming = taken, false
		rec.lateTried, rec.lateDue = a.Result != store.TableLocked && a.Result != store.NotYetVisible, w.now.Add(lanes.ClaimAfter)
		if a.Result == store.TableLocked {
			w.known[rec.key.Outbox] = true
		}
		answers = append(answers, a)
	}
	w.lateRows = nil
	w.core.late.claimed(answers, w.now, w.now)
}

// loseLease takes back a request whose sender has waited for the lease until its rows were not
// fresh any more.
func (w *coreModel) loseLease(*rapid.T) {
	i := slices.IndexFunc(w.sending, func(req *request) bool { return req.IsStale(w.now) })
	if i < 0 || len(w.lateRows) > 0 { // the claimer claims nothing else meanwhile
		return
	}
	req := w.sending[i]
	w.sending = slices.Delete(w.sending, i, i+1)
	for rw := range req.Rows() {
		w.of(rw).tries--
	}
	for _, r := range req.Runs {
		w.claims[r.Lane.Name] = 0
	}
	w.core.takeBackStale(req)
	w.send()
	w.check()
}

// holdEnds records that a lane was on hold: the rows that it has by now are claimed first.
func (w *coreModel) holdEnds(name LaneName) {
	for _, id := range w.queue[name] {
		w.row(id).waited = true
	}
}
