package app

import (
	"sync"
	"time"
)

// meterSeconds is how far back a meter looks: a minute, and the second that has
// just begun.
const meterSeconds = 61

// meter counts by the second, so that rates of the latest past can be told
// without anybody who wakes up for it.
type meter struct {
	mu      sync.Mutex
	began   int64 // the first second that counted, in Unix time
	seconds [meterSeconds]struct{ at, n int64 }
}

// add counts n at a moment.
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

// rate returns how many were counted in a second, over a number of whole seconds
// before now, or over those since the first count if they are fewer.
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
