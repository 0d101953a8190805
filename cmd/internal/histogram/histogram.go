// Package histogram counts durations in bounded memory.
package histogram

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets of fixed bounds, so that its size does not
// grow with their number. The zero value is empty. Below 64 µs a bucket is 1 µs wide. Above, each power of
// two has 64 buckets, so a bucket is at most 1/64 (1.6 %) of its duration wide.
type Histogram struct {
	counts [buckets]int
	total  int
}

const (
	fineBits = 6 // 64 buckets to a power of two
	octaves  = 30
	buckets  = (octaves + 1) << fineBits
)

// bucket returns the index of the bucket of a duration. Durations above 9 hours
// share the last bucket.
func bucket(t time.Duration) int {
	us := uint64(max(0, t.Microseconds()))
	shift := max(0, bits.Len64(us)-1-fineBits)
	return min(shift<<fineBits+int(us>>shift), buckets-1)
}

// upper returns the upper bound of a bucket.
func upper(i int) time.Duration {
	if i < 2<<fineBits {
		return time.Duration(i+1) * time.Microsecond
	}
	shift := i>>fineBits - 1
	return time.Duration((i&(1<<fineBits-1)+1<<fineBits+1)<<shift) * time.Microsecond
}

// Add counts a duration.
func (h *Histogram) Add(t time.Duration) {
	h.counts[bucket(t)]++
	h.total++
}

// Total returns the number of durations.
func (h *Histogram) Total() int { return h.total }

// Quantile returns the duration that a share q of all durations does not exceed,
// or 0 if the histogram is empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank, seen := int(q*float64(h.total-1)), 0
	for i, n := range h.counts {
		if seen += n; seen > rank {
			return upper(i)
		}
	}
	return upper(buckets - 1)
}
