package ingest

import "golang.org/x/sync/semaphore"

// reservation is the memory that a request holds of a common limit. It grows as the body
// arrives, so that a slow client holds only what it has sent.
type reservation struct {
	of   *semaphore.Weighted
	held int64
}

// grow raises the reservation to size bytes. It returns false, and changes nothing, if other
// requests hold too much.
func (r *reservation) grow(size int64) bool {
	if size <= r.held {
		return true
	}
	if !r.of.TryAcquire(size - r.held) {
		return false
	}
	r.held = size
	return true
}

func (r *reservation) release() {
	r.of.Release(r.held)
	r.held = 0
}
