package histogram

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHistogramBuckets verifies that the buckets have no gaps, and that none is wider
// than 1/64 of its durations or 1 µs.
func TestHistogramBuckets(t *testing.T) {
	below := time.Duration(0)
	for i := range buckets - 1 {
		if got := bucket(below); got != i {
			t.Fatalf("%s is in bucket %d, want %d", below, got, i)
		}
		up := upper(i)
		if last := up - time.Microsecond; bucket(last) != i || bucket(up) != i+1 {
			t.Fatalf("bucket %d ends at %s, where %s is in %d and %s in %d", i, up, last, bucket(last), up, bucket(up))
		}
		if width := up - below; width > max(time.Microsecond, up/64) {
			t.Fatalf("bucket %d is %s wide at %s", i, width, up)
		}
		below = up
	}
	if bucket(1000*time.Hour) != buckets-1 || bucket(-time.Hour) != 0 {
		t.Error("times beyond the ends are not in the buckets at the ends")
	}
}

func TestHistogramQuantiles(t *testing.T) {
	var h Histogram
	if h.Quantile(.5) != 0 {
		t.Error("without times the median is not 0")
	}
	random := rand.New(rand.NewPCG(1, 2))
	times := make([]time.Duration, 10_000)
	for i := range times {
		times[i] = time.Duration(random.ExpFloat64() * float64(2*time.Millisecond))
		h.Add(times[i])
	}
	slices.Sort(times)
	for _, q := range []float64{0, .01, .5, .9, .99, .999, 1} {
		exact, got := times[int(q*float64(len(times)-1))], h.Quantile(q)
		if got < exact || got > exact+max(2*time.Microsecond, exact/32) {
			t.Errorf("quantile %g is %s, exactly %s", q, got, exact)
		}
	}
}
