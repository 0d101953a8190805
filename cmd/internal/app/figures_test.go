package app

import (
	"math"
	"testing"
	"time"
)

// TestFiguresKeepAnHour: figures have the rows of each interval, and the last hour of them.
func TestFiguresKeepAnHour(t *testing.T) {
	var f figures
	total := buckets{bounds: []float64{0.001, 0.01, 0.1}, counts: make([]uint64, 4)}
	at := time.Unix(0, 0)
	step := func(bucket int, rows uint64) {
		next := buckets{bounds: total.bounds, counts: append([]uint64{}, total.counts...)}
		next.counts[bucket] += rows
		total, at = next, at.Add(figureInterval)
		f.add(at, total)
	}
	for range figureCount {
		step(1, 100)
	}
	step(2, 1000)
	step(0, 0)

	got := f.Figures()
	n := len(got.Figures)
	if n != figureCount || got.Whole.Rows != (figureCount-2)*100+1000 {
		t.Fatalf("%d figures of %d rows", n, got.Whole.Rows)
	}
	busy, idle := got.Figures[n-2], got.Figures[n-1]
	if busy.Rows != 1000 || math.Abs(*busy.P50-0.055) > 1e-9 || math.Abs(*busy.P99-0.0991) > 1e-9 || idle.Rows != 0 || idle.P50 != nil || !idle.At.Equal(at) {
		t.Errorf("the last intervals are %+v and %+v", busy, idle)
	}
}
