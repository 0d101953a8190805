package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// maxStatementRows limits a claim or outcome statement, so that a new row does not wait
// long behind a huge one.
const maxStatementRows = 2000

// claim claims the rows of requests and passes the answers to the core.
func (d *Dispatcher) claim(ctx context.Context, reqs []*request) error {
	rows := d.claims[:0]
	for _, req := range reqs {
		for rw := range req.Rows() {
			rows = append(rows, store.ClaimRow{
				Ref: rw.Ref, Txn: rw.Txn, OwnClaimAt: rw.Claimed, WantPayload: rw.Payload == nil,
			})
		}
	}
	d.claims = rows
	at := time.Now().Truncate(time.Microsecond) // the precision of every database
	answers, err := bisectRefused(rows, func(rows []store.ClaimRow) (answers []store.ClaimAnswer, err error) {
		_, err = d.retryStore(ctx, "claim", func() (err error) {
			var refused *store.RefusedError // then nothing was written
			if answers, err = d.opt.Store.Claim(ctx, d.opt.Epoch, at, rows); err != nil && !errors.As(err, &refused) {
				for i := range rows {
					rows[i].OwnClaimAt = at // the claim may be written and its answer lost
				}
			}
			return err
		})
		return answers, err
	}, func(row *store.ClaimRow, err error) store.ClaimAnswer {
		d.obs.Refused(row.Ref, "claim", err)
		// The lane claims the row again, alone.
		return store.ClaimAnswer{Result: store.NotYetVisible, Error: "claim refused by the table: " + shortenError(err.Error())}
	})
	if err != nil {
		return err
	}
	reportAnswers(d.obs, reqs, answers)
	d.mu.Lock()

	now := time.Now()
	for _, req := range reqs {
		n := req.Size()
		d.core.claimed(req, answers[:n], at, now)
		answers = answers[n:]
	}

	d.dispatchRequests(now)
	d.mu.Unlock()
	d.wakeWorkers()
	return nil
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

	for result, n := range counts {
		if n > 0 {
			obs.Claimed(store.ClaimResult(result), n)
		}
	}
	if len(gone) > 0 {
		obs.Vanished(gone)
	}
}

// write writes outcomes and passes the results to the core.
func (d *Dispatcher) write(ctx context.Context, batch []outcome) error {
	outcomes, at := d.outcomes[:0], time.Now()
	for i := range batch {
		if o := &batch[i].Outcome; o.Status == store.Completed {
			o.At = at // one timestamp for all makes the statement cheaper
		}
		outcomes = append(outcomes, batch[i].Outcome)
	}

	d.outcomes = outcomes
	unsure := false
	var refusals map[store.Ref]string
	results, err := bisectRefused(outcomes, func(outcomes []store.Outcome) (results []store.SettleResult, err error) {
		tries, err := d.retryStore(ctx, "settle", func() (err error) {
			results, err = d.opt.Store.Settle(ctx, d.opt.Epoch, outcomes)
			return err
		})
		unsure = unsure || tries > 1
		return results, err
	}, func(o *store.Outcome, err error) store.SettleResult {
		d.obs.Refused(o.Ref, o.Status.String(), err)
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
			d.obs.Settled(&batch[i].Of.Row.Item, &batch[i].Outcome)
		}
	}

	if len(vanished) > 0 {
		d.obs.Vanished(vanished)
	}
	reportLocked(d.obs, batch, results)
	d.mu.Lock()

	for i := range batch {
		if results[i] == store.WasSettled && !batch[i].MaybeWritten {
			batch[i].Block = nil // another session settled it
		}
		if results[i] == store.Refused {
			batch[i].Refusal = refusals[batch[i].Ref]
		}
	}

	d.core.written(results, time.Now())
	d.mu.Unlock()
	d.wakeWorkers()
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

// retryStore calls do until it succeeds, the context ends, leadership is lost or the store
// refuses the statement. It returns the number of calls. If the database is unreachable it
// retries indefinitely: the rows are safe where they are.
func (d *Dispatcher) retryStore(ctx context.Context, op string, do func() error) (tries int, err error) {
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
