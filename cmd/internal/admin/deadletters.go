package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// DeadLetters lists FAILED rows and acts on them. Its methods are safe for concurrent
// use.
//
// Errors:
//   - store.ErrNotLeader and sluicebox.ErrNotLeading;
//   - *sluicebox.RequestError for a missing or unknown outbox, and for filters its layout does not
//     support;
//   - *store.SetupError for a missing grant.
type DeadLetters interface {
	// Count counts the chosen rows.
	Count(ctx context.Context, f store.DeadLetterFilter) (int, error)
	// List returns at most limit of the chosen rows, in the layout's order-by.
	List(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error)
	// Requeue resets at most limit of the chosen rows to PENDING and returns their
	// number.
	Requeue(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error)
	// Discard deletes at most limit of the chosen rows and returns their number.
	Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error)
}

const (
	deadLettersPath    = "/api/v1/deadletters"
	defaultDeadLetters = 100
	// MaxDeadLetters is the most rows that one request reads or acts on.
	MaxDeadLetters = 1000
	// maxPayloads and maxPayloadBytes limit the payloads that one request reads, because
	// the relay holds them in memory.
	maxPayloads     = 25
	maxPayloadBytes = 4 << 20
)

// errUnexpectedCount is returned if a filter chooses another number of rows than the
// caller expects.
var errUnexpectedCount = errors.New("nothing was changed")

// deadLetterEndpoints serves the FAILED rows.
func (h *handler) deadLetterEndpoints(mux *http.ServeMux, letters DeadLetters) {
	h.get(mux, deadLettersPath, func(ctx context.Context, q *query) (any, error) { return listDeadLetters(ctx, letters, q) })
	h.get(mux, deadLettersPath+"/count", func(ctx context.Context, q *query) (any, error) {
		f := q.deadLetters()
		if err := q.finish(); err != nil {
			return nil, err
		}
		n, err := letters.Count(ctx, f)
		return DeadLetterCount{Count: n}, err
	})
	for name, do := range map[string]deadLetterAction{"requeue": letters.Requeue, "discard": letters.Discard} {
		post(h, mux, deadLettersPath+"/"+name, func(ctx context.Context, req *DeadLetterRequest, written rawFields) (any, error) {
			if err := req.validate(written); err != nil {
				return nil, err
			}
			return actOnDeadLetters(ctx, letters, do, req)
		})
	}
}

// deadLetters returns the filter of a GET request.
func (q *query) deadLetters() store.DeadLetterFilter {
	return store.DeadLetterFilter{
		Outbox: q.text("outbox"), IDs: q.values("id"), Kind: q.text("kind"), Group: q.group(), Error: q.text("error"),
		Since: q.time("since"), Until: q.time("until"),
	}
}

func listDeadLetters(ctx context.Context, letters DeadLetters, q *query) (any, error) {
	f := q.deadLetters()
	payload := q.flag("payload")
	usual, most := defaultDeadLetters, MaxDeadLetters
	if payload {
		usual, most = maxPayloads, maxPayloads
	}

	limit := q.limit(usual, most)
	if err := q.finish(); err != nil {
		return nil, err
	}

	rows, err := letters.List(ctx, f, limit, false)
	if err == nil && payload {
		err = readPayloads(ctx, letters, rows)
	}

	if err != nil {
		return nil, err
	}
	answer := DeadLetterList{DeadLetters: make([]DeadLetter, len(rows))}
	for i := range rows {
		answer.DeadLetters[i] = DeadLetterOf(&rows[i])
	}

	return answer, nil
}

// readPayloads reads the payloads of rows in their order. It leaves out a payload that
// exceeds the remaining bytes.
func readPayloads(ctx context.Context, letters DeadLetters, rows []store.DeadLetter) error {
	var ids []string
	places, bytes := map[string]int{}, 0
	for i := range rows {
		if size := rows[i].PayloadSize; bytes+size <= maxPayloadBytes {
			bytes += size
			places[rows[i].ID] = i
			ids = append(ids, rows[i].ID)
		}
	}

	if len(ids) == 0 {
		return nil
	}
	full, err := letters.List(ctx, store.DeadLetterFilter{Outbox: rows[0].Outbox, IDs: ids}, len(ids), true)
	for i := range full {
		if at, asked := places[full[i].ID]; asked {
			rows[at].Payload, rows[at].PayloadSize = full[i].Payload, full[i].PayloadSize
		}
	}

	return err
}

// deadLetterAction acts on at most limit of the chosen rows.
type deadLetterAction func(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error)

func actOnDeadLetters(ctx context.Context, letters DeadLetters, do deadLetterAction, req *DeadLetterRequest) (any, error) {
	f := req.filter()
	if req.DryRun {
		return countWithBound(ctx, letters, f)
	}

	if req.Expect != nil {
		n, err := letters.Count(ctx, f)
		if err != nil {
			return nil, err
		}
		if n != *req.Expect {
			return nil, fmt.Errorf("%w: the filter now chooses %d rows, not %d; check them and confirm again", errUnexpectedCount, n, *req.Expect)
		}
	}

	n, err := do(ctx, f, req.Limit)
	return DeadLetterCount{Count: n}, err
}

// validate reports missing or contradictory fields, and sets the default limit.
func (q *DeadLetterRequest) validate(written rawFields) error {
	if err := written.rejectNull(); err != nil {
		return err
	}
	_, ids := written["ids"]
	switch {
	case q.Group != nil && q.NoGroup:
		return badRequest("group and no_group are both given; use one of them")
	case ids && len(q.IDs) == 0:
		return badRequest("ids is empty; omit it to choose by the other fields")
	case len(q.IDs) > MaxDeadLetters:
		return badRequest("%d ids exceed the limit of %d per request", len(q.IDs), MaxDeadLetters)
	case q.Limit < 0 || q.Limit > MaxDeadLetters:
		return badRequest("limit is %d, must be between 1 and %d; call again for more", q.Limit, MaxDeadLetters)
	case q.Limit == 0:
		q.Limit = MaxDeadLetters
	}

	return nil
}

// countWithBound counts the chosen rows and returns a time bound for the action itself,
// if the table records times.
func countWithBound(ctx context.Context, letters DeadLetters, f store.DeadLetterFilter) (any, error) {
	now := time.Now().UTC()
	n, err := letters.Count(ctx, f)
	if err != nil || !f.Until.IsZero() {
		return DeadLetterCount{Count: n, Until: f.Until}, err
	}
	f.Until = now
	if m, err := letters.Count(ctx, f); err != nil || m != n {
		return DeadLetterCount{Count: n}, nil // some rows have no time
	}
	return DeadLetterCount{Count: n, Until: now}, nil
}
