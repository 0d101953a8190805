package app

import (
	"sync"
	"time"
)

// meterSeconds is the window of a meter: a minute plus the current second.
const meterSeconds = 61

// meter counts per second, so that a rate can be computed on demand, without a ticker.
type meter struct {
	mu      sync.Mutex
	began   int64 // Unix time of the first count
	seconds [meterSeconds]struct{ at, n int64 }
}

// add counts n at a time.
func (m *meter) add(now time.Time, n int) {
	at := now.Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began == 0 {
		m.began = at
	}
	s := &m.seconds[at%meterSeconds]
	if s.at != at {
		s.at, s.n = at, 0
	}
	s.n += int64(n)
}

// rate returns the counts per second over the given whole seconds before now. The window
// starts no earlier than the first count.
func (m *meter) rate(now time.Time, over int64) float64 {
	end := now.Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := int64(0)
	for i := range m.seconds {
		if s := &m.seconds[i]; s.at >= end-over && s.at < end {
			sum += s.n
		}
	}
	if m.began > 0 {
		over = min(over, end-m.began)
	}
	return float64(sum) / float64(max(1, over))
}
