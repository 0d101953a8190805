package mongo

import (
	"errors"
	"maps"
	"math"
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
// is alone. It returns the rows that were not done. Rows with a recent conflict come last and
// are tried at most maxContendedTries times.
func (k *contention) isolate(indexes []int, ref func(i int) store.Ref, wait time.Duration, do func(at []int, wait time.Duration) error) (skipped []int, err error) {
	free, recent := k.partition(indexes, ref)
	b := bisection{do: do, tries: math.MaxInt}
	if err := b.run(free, wait); err != nil {
		return nil, err
	}
	b.tries = maxContendedTries
	if err := b.run(recent, 0); err != nil {
		return nil, err
	}
	if len(recent)+len(b.skipped) > 0 {
		k.record(recent, b.skipped, ref)
	}
	return b.skipped, nil
}

// record stores which rows are contended now.
func (k *contention) record(recent, contended []int, ref func(i int) store.Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()

	for _, i := range recent {
		delete(k.until, ref(i))
	}
	if k.until == nil {
		k.until = map[store.Ref]time.Time{}
	}
	for _, i := range contended {
		k.until[ref(i)] = time.Now().Add(contentionTTL)
	}
}

// isContended reports whether a call failed because another session has changed one of its
// documents, other than the leader document.
func isContended(err error) bool {
	return isWriteConflict(err) && !errors.As(err, new(*leaderBusyError)) && !errors.As(err, new(*commitError))
}

// bisection halves rows until each half is done or is one contended row.
type bisection struct {
	do      func(at []int, wait time.Duration) error
	tries   int // failures left
	skipped []int
}

func (b *bisection) run(at []int, wait time.Duration) error {
	if len(at) == 0 {
		return nil
	}

	if b.tries > 0 {
		if err := b.do(at, wait); !isContended(err) {
			return err
		}
		b.tries--
	}
	if len(at) == 1 || b.tries == 0 {
		b.skipped = append(b.skipped, at...)
		return nil
	}

	half := len(at) / 2
	if err := b.run(at[:half], 0); err != nil {
		return err
	}
	return b.run(at[half:], 0)
}
