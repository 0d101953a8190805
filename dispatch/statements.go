package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// maxStatementRows limits a claim or outcome statement, so that a new row does not wait
// long behind a huge one.
const maxStatementRows = 2000

// claimer claims the rows of ready lanes.
type claimer struct {
	d    *Dispatcher
	rows []store.ClaimRow // reused for each statement
}

// run claims the rows of ready lanes, one statement at a time.
func (c *claimer) run(ctx context.Context) error {
	for {
		c.d.mu.Lock()
		now := time.Now()
		c.d.core.tick(now)
		if c.d.core.outcomes.Ready() {
			notify(c.d.toWrite) // some outcomes are due for a retry
		}
		c.d.notifySpill() // a lane with spilled rows may be due
		reqs := c.d.core.nextClaims(maxStatementRows, now)
		late := c.d.core.late.next(maxStatementRows, now)
		c.d.sending.dispatch(now) // replayed and fresh rows need no claim
		wake, _ := c.d.core.nextWake(now)
		c.d.mu.Unlock()
		c.d.breakers.update() // a receiver may have become idle or busy
		var err error
		if len(reqs)+len(late) > 0 {
			err = c.step(ctx, reqs, late)
		} else {
			err = await(ctx, c.d.toClaim, wake)
		}
		if err != nil {
			return err
		}
	}
}

// step reads or claims the rows of requests, and claims rows late.
func (c *claimer) step(ctx context.Context, reqs []*request, late []*row) error {
	probes := c.boundProbes(reqs)
	defer probes.end()
	if reqs = c.check(ctx, reqs); len(reqs)+len(late) == 0 {
		return nil
	}
	return c.claim(ctx, reqs, late, probes)
}

// check reads the rows of the requests that need no claim, and passes them to the core. It returns those whose
// rows are to be claimed, also because the rows cannot be read.
func (c *claimer) check(ctx context.Context, reqs []*request) (toClaim []*request) {
	rows := c.rows[:0]
	for _, req := range reqs {
		if req.Checks {
			for rw := range req.Rows() {
				rows = append(rows, store.ClaimRow{Ref: rw.Ref, Txn: rw.Txn})
			}
		}
	}
	c.rows = rows
	if len(rows) == 0 {
		return reqs
	}
	at := time.Now()
	untried, err := c.d.opt.Store.ReadUntried(ctx, rows)
	if err != nil {
		if ctx.Err() == nil {
			c.d.obs.StoreFailed("read", err)
		}
		return reqs
	}
	c.d.mu.Lock()
	now := time.Now()
	for _, req := range reqs {
		n := 0
		if req.Checks {
			n = req.Size()
		}
		if n == 0 || !c.d.core.late.checked(req, untried[:n], at, now) {
			toClaim = append(toClaim, req)
		}
		untried = untried[n:]
	}
	c.d.sending.dispatch(now)
	c.d.mu.Unlock()
	c.d.wakeWorkers()
	return toClaim
}

// claim claims the rows of requests, and rows that are claimed late, and passes the answers to
// the core.
func (c *claimer) claim(ctx context.Context, reqs []*request, late []*row, probes *claimedProbes) error {
	rows := c.rows[:0]
	for _, req := range reqs {
		for rw := range req.Rows() {
			rows = append(rows, store.ClaimRow{
				Ref: rw.Ref, Txn: rw.Txn, OwnClaimAt: rw.Claimed, RetryCount: rw.RetryCount, WantPayload: rw.Payload == nil,
			})
		}
	}
	inFlight := len(rows) // from here on
	for _, rw := range late {
		rows = append(rows, store.ClaimRow{Ref: rw.Ref, Txn: rw.Txn, RetryCount: rw.RetryCount})
	}
	c.rows = rows
	at := time.Now().Truncate(time.Microsecond) // the precision of every database
	answers, err := bisectRefused(rows, func(rows []store.ClaimRow) (answers []store.ClaimAnswer, err error) {
		_, err = c.d.retry(ctx, Claim, func() (err error) {
			var refused *store.RefusedError // then nothing was written
			if answers, err = c.d.opt.Store.Claim(ctx, c.d.opt.Epoch, at, rows); err != nil && !errors.As(err, &refused) {
				for i := range rows {
					rows[i].OwnClaimAt = at // the claim may be written and its answer lost
				}
				c.pauseProbes(reqs)
			}
			return err
		})
		return answers, err
	}, func(row *store.ClaimRow, err error) store.ClaimAnswer {
		op := Claim // the lane claims the row again, alone
		if slices.ContainsFunc(rows[inFlight:], func(late store.ClaimRow) bool { return late.Ref == row.Ref }) {
			op = LateClaim
		}
		c.d.obs.Refused(row.Ref, op, err)
		return store.ClaimAnswer{Result: store.NotYetVisible, Error: "claim refused by the table: " + shortenError(err.Error())}
	})
	if err != nil {
		return err
	}
	reportAnswers(c.d.obs, reqs, answers)
	c.d.mu.Lock()

	now := time.Now()
	probes.ended = true
	for _, req := range reqs {
		req.ResumeProbe()
		n := req.Size()
		c.d.core.claimed(req, answers[:n], at, now)
		answers = answers[n:]
	}
	c.d.core.late.claimed(answers, at, now)

	c.d.sending.dispatch(now)
	c.d.mu.Unlock()
	c.d.wakeWorkers()
	return nil
}

// pauseProbes lets the other dispatchers of the destination probe while this one cannot claim the row of a
// probe.
func (c *claimer) pauseProbes(reqs []*request) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for _, req := range reqs {
		req.PauseProbe()
	}
}

// probeClaimTimeout is how long the claim of a probe may hold back the probes of the other dispatchers of
// the destination. A claim usually takes a millisecond.
const probeClaimTimeout = 2 * time.Second

// claimedProbes are the probes of a claim that is not answered yet.
type claimedProbes struct {
	c     *claimer
	timer *time.Timer // nil without probes
	ended bool        // guarded by the lock of the dispatcher
}

// boundProbes lets the other dispatchers of the destination probe if a claim takes longer than
// probeClaimTimeout.
func (c *claimer) boundProbes(reqs []*request) *claimedProbes {
	p := &claimedProbes{c: c}
	if c.d.member == nil || !slices.ContainsFunc(reqs, func(req *request) bool { return req.Probe != breaker.None }) {
		return p
	}
	p.timer = time.AfterFunc(probeClaimTimeout, func() {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		if p.ended {
			return
		}
		for _, req := range reqs {
			req.PauseProbe()
		}
	})
	return p
}

// end ends what boundProbes has begun.
func (p *claimedProbes) end() {
	if p.timer == nil {
		return
	}
	p.timer.Stop()
	p.c.d.mu.Lock()
	defer p.c.d.mu.Unlock()
	p.ended = true
}

// reportAnswers reports the answers of a claim, and the rows that it did not find.
func reportAnswers(obs Observer, reqs []*request, answers []store.ClaimAnswer) {
	var counts [store.TableLocked + 1]int
	var gone []*store.Item
	for _, req := range reqs {
		for rw := range req.Rows() {
			if counts[answers[0].Result]++; answers[0].Result == store.Gone {
				gone = append(gone, &rw.Item)
			}
			answers = answers[1:]
		}
	}
	for i := range answers { // of late claims
		counts[answers[i].Result]++
	}

	for result, n := range counts {
		if n > 0 {
			obs.Claimed(store.ClaimResult(result), n)
		}
	}
	if len(gone) > 0 {
		obs.Vanished(gone)
	}
}

// writer writes outcomes, beside others.
type writer struct {
	d      *Dispatcher
	number int             // among the writers, from 0
	rows   []store.Outcome // reused for each statement
}

// run writes queued outcomes, one batch at a time.
func (w *writer) run(ctx context.Context) error {
	for {
		w.d.mu.Lock()
		batch := w.d.core.late.nextOutcomes(w.number, maxStatementRows, time.Now())
		more := w.d.core.outcomes.Ready()
		w.d.mu.Unlock()
		if more {
			notify(w.d.toWrite) // the other one
		}
		var err error
		if len(batch) > 0 {
			err = w.write(ctx, batch)
		} else {
			err = await(ctx, w.d.toWrite, time.Time{})
		}
		if err != nil {
			return err
		}
	}
}

// write writes outcomes and passes the results to the core.
func (w *writer) write(ctx context.Context, batch []outcome) error {
	outcomes, at := w.rows[:0], time.Now()
	for i := range batch {
		if o := &batch[i].Outcome; o.Status == store.Completed {
			o.At = at // one timestamp for all makes the statement cheaper
		}
		outcomes = append(outcomes, batch[i].Outcome)
	}

	w.rows = outcomes
	unsure := false
	var refusals map[store.Ref]string
	results, err := bisectRefused(outcomes, func(outcomes []store.Outcome) (results []store.SettleResult, err error) {
		tries, err := w.d.retry(ctx, "settle", func() (err error) {
			results, err = w.d.opt.Store.Settle(ctx, w.d.opt.Epoch, outcomes)
			return err
		})
		unsure = unsure || tries > 1
		return results, err
	}, func(o *store.Outcome, err error) store.SettleResult {
		w.d.obs.Refused(o.Ref, o.Status.String(), err)
		if refusals == nil {
			refusals = map[store.Ref]string{}
		}
		refusals[o.Ref] = o.Status.String() + " refused by the table: " + shortenError(err.Error())
		return store.Refused
	})
	if err != nil {
		return err
	}

	var vanished []*store.Item
	for i := range batch {
		batch[i].MaybeWritten = batch[i].MaybeWritten || unsure
		unsure := batch[i].MaybeWritten
		if results[i] == store.WasGone && !unsure {
			vanished = append(vanished, &batch[i].Of.Row.Item)
		}
		// After a try whose answer was lost, a settled row was settled by us.
		if results[i] == store.Written || unsure && !results[i].NeedsRetry() {
			w.d.obs.Settled(&batch[i].Of.Row.Item, &batch[i].Outcome)
		}
	}

	if len(vanished) > 0 {
		w.d.obs.Vanished(vanished)
	}
	reportLocked(w.d.obs, batch, results)
	w.d.mu.Lock()

	for i := range batch {
		if results[i] == store.WasSettled && !batch[i].MaybeWritten {
			batch[i].Block = nil // another session settled it
		}
		if results[i] == store.Refused {
			batch[i].Refusal = refusals[batch[i].Ref]
		}
	}

	w.d.core.wrote(w.number, results, time.Now())
	w.d.mu.Unlock()
	w.d.wakeWorkers()
	return nil
}

// reportLocked reports outcomes whose rows are locked.
func reportLocked(obs Observer, batch []outcome, results []store.SettleResult) {
	locked := map[string]int{}
	for i, result := range results {
		if result == store.WasLocked {
			locked[batch[i].Outbox]++
		}
	}
	for outbox, n := range locked {
		obs.StoreFailed("settle locked rows of "+outbox, &store.OutboxLockedError{Outbox: outbox, Rows: n})
	}
}

// retry calls do until it succeeds, the context ends, leadership is lost or the store
// refuses the statement. It returns the number of calls. If the database is unreachable it
// retries indefinitely: the rows are safe where they are.
func (d *Dispatcher) retry(ctx context.Context, op string, do func() error) (tries int, err error) {
	retry := backoff.Doubling{Min: 20 * time.Millisecond, Max: 2 * time.Second}
	for {
		tries++
		err := do()
		if err == nil {
			return tries, nil
		}
		var refused *store.RefusedError
		if errors.Is(err, store.ErrNotLeader) || errors.As(err, &refused) || ctx.Err() != nil {
			return tries, err
		}
		d.obs.StoreFailed(op, err)
		if err := retry.Wait(ctx); err != nil {
			return tries, err
		}
	}
}

// retryOwnTables is retry for statements on the relay's tables. It also retries a
// refusal, because there is no single row to set aside.
func (d *Dispatcher) retryOwnTables(ctx context.Context, op string, do func() error) error {
	_, err := d.retry(ctx, op, func() error {
		err := do()
		var refused *store.RefusedError
		if errors.As(err, &refused) {
			err = refused.Err
		}
		return err
	})
	return err
}

// bisectRefused applies do to many rows in one statement. If the store refuses the
// statement, it halves the rows until each refused row is alone: a single bad row must not
// hold up the others.
func bisectRefused[In, Out any](in []In, do func([]In) ([]Out, error), refused func(*In, error) Out) ([]Out, error) {
	out, err := do(in)
	var refusal *store.RefusedError
	if !errors.As(err, &refusal) {
		return out, err
	}
	if len(in) == 1 {
		return []Out{refused(&in[0], err)}, nil
	}
	first, err := bisectRefused(in[:len(in)/2], do, refused)
	if err != nil {
		return nil, err
	}
	second, err := bisectRefused(in[len(in)/2:], do, refused)
	return append(first, second...), err
}
