package mongo

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// contentionWait is how long the first call waits for a document that another session
	// changes in an open transaction. Later calls do not wait for that document.
	contentionWait = 250 * time.Millisecond
	// contentionTTL is how long a document counts as contended after its last conflict.
	contentionTTL = 10 * time.Second
	// maxContendedTries bounds the failing transactions of one call for documents known to
	// be contended, because each failure identifies just one contended document.
	maxContendedTries = 16
)

// contention remembers documents that another session has changed in an open transaction.
type contention struct {
	mu    sync.Mutex
	until map[store.Ref]time.Time
}

// partition splits a call into rows without a recent conflict and rows with one. The latter
// are rotated to a random start, so that each gets its turn.
func (k *contention) partition(indexes []int, ref func(i int) store.Ref) (free, recent []int) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()

	if len(k.until) == 0 {
		return indexes, nil
	}

	for _, i := range indexes {
		if now.Before(k.until[ref(i)]) {
			recent = append(recent, i)
		} else {
			free = append(free, i)
		}
	}

	maps.DeleteFunc(k.until, func(_ store.Ref, until time.Time) bool { return !now.Before(until) })
	if len(recent) > 1 {
		at := rand.IntN(len(recent))
		recent = append(recent[at:len(recent):len(recent)], recent[:at]...)
	}

	return free, recent
}

// isolate runs do for the given rows and bisects on contention until the contended document
// is alone. It calls skipped for each row that was not done. Rows with a recent conflict come
// last and are tried at most maxContendedTries times.
func (k *contention) isolate(ctx context.Context, indexes []int, ref func(i int) store.Ref, wait time.Duration,
	do func(ctx context.Context, at []int, wait time.Duration) error, skipped func(i int),
) error {
	free, recent := k.partition(indexes, ref)
	contended := map[int]bool{}
	skip := func(i int) {
		contended[i] = true
		skipped(i)
	}
	unlimited, limited := -1, maxContendedTries
	err := bisect(ctx, free, wait, &unlimited, do, skip)
	if err == nil {
		err = bisect(ctx, recent, 0, &limited, do, skip)
	}
	if err == nil && len(recent)+len(contended) > 0 {
		k.record(recent, contended, ref)
	}
	return err
}

// record stores which rows are contended now.
func (k *contention) record(recent []int, contended map[int]bool, ref func(i int) store.Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()

	for _, i := range recent {
		delete(k.until, ref(i))
	}
	if k.until == nil {
		k.until = map[store.Ref]time.Time{}
	}
	for i := range contended {
		k.until[ref(i)] = time.Now().Add(contentionTTL)
	}
}

// isContended reports whether a call failed because another session has changed one of its
// documents, other than the leader document.
func isContended(err error) bool {
	return isWriteConflict(err) && !errors.As(err, new(*leaderBusyError)) && !errors.As(err, new(*commitError))
}

// bisect is the recursive part of isolate. It stops after tries failures, unless tries is
// negative.
func bisect(ctx context.Context, at []int, wait time.Duration, tries *int, do func(ctx context.Context, at []int, wait time.Duration) error, skipped func(i int)) error {
	if len(at) == 0 {
		return nil
	}

	if *tries != 0 {
		*tries--
		err := do(ctx, at, wait)
		if !isContended(err) {
			if err == nil {
				*tries++ // not a failure: give the try back
			}
			return err
		}
	}

	if len(at) == 1 || *tries == 0 {
		for _, i := range at {
			skipped(i)
		}
		return nil
	}

	half := len(at) / 2
	if err := bisect(ctx, at[:half], 0, tries, do, skipped); err != nil {
		return err
	}

	return bisect(ctx, at[half:], 0, tries, do, skipped)
}
