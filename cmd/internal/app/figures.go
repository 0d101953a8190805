package app

import (
	"context"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

const (
	figureInterval = 10 * time.Second
	figureCount    = 360 // an hour
)

// figures keeps the throughput and latency of the last hour. It reads the histogram that exists
// anyway, so it costs nothing per row.
type figures struct {
	mu   sync.Mutex
	last buckets // as read last
	ring [figureCount]buckets
	at   [figureCount]time.Time
	n    int // intervals so far
}

// buckets are the rows of a histogram at or below each bound, and beyond the last one.
type buckets struct {
	bounds []float64
	counts []uint64 // not cumulative
}

// run adds an interval every figureInterval, until the context ends.
func (f *figures) run(ctx context.Context, m *Metrics) {
	ticker := time.NewTicker(figureInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			f.add(now, m.ackBuckets())
		}
	}
}

// add ends an interval. total are the rows since the start.
func (f *figures) add(now time.Time, total buckets) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := buckets{total.bounds, make([]uint64, len(total.counts))}
	copy(of.counts, total.counts)
	for i, before := range f.last.counts {
		of.counts[i] -= before
	}
	f.last, f.ring[f.n%figureCount], f.at[f.n%figureCount] = total, of, now
	f.n++
}

// Figures implements admin.Figures.
func (f *figures) Figures() admin.FigureList {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := admin.FigureList{IntervalSeconds: figureInterval.Seconds(), Figures: []admin.Figure{}}
	var whole buckets
	for i := max(0, f.n-figureCount); i < f.n; i++ {
		one := f.ring[i%figureCount]
		whole.add(one)
		list.Figures = append(list.Figures, one.figure(f.at[i%figureCount]))
		list.Whole.At = f.at[i%figureCount]
	}
	list.Whole = whole.figure(list.Whole.At)
	return list
}

// ackBuckets returns the rows of all sinks by the time from commit to COMPLETED.
func (m *Metrics) ackBuckets() buckets {
	sum := buckets{bounds: ackBuckets(), counts: make([]uint64, len(ackBuckets())+1)}
	m.bySink.Range(func(_, of any) bool {
		var read dto.Metric
		if of.(*SinkMetrics).commitToAck.Write(&read) != nil {
			return true
		}
		var below uint64
		for i, b := range read.GetHistogram().GetBucket() {
			sum.counts[i] += b.GetCumulativeCount() - below
			below = b.GetCumulativeCount()
		}
		sum.counts[len(sum.bounds)] += read.GetHistogram().GetSampleCount() - below
		return true
	})
	return sum
}

// add adds the rows of another interval.
func (b *buckets) add(of buckets) {
	if b.counts == nil {
		b.bounds, b.counts = of.bounds, make([]uint64, len(of.counts))
	}
	for i, n := range of.counts {
		b.counts[i] += n
	}
}

// figure returns the figure of an interval that ended at at.
func (b *buckets) figure(at time.Time) admin.Figure {
	var rows uint64
	for _, n := range b.counts {
		rows += n
	}
	shown := admin.Figure{At: at.UTC(), Rows: int64(rows)}
	if rows > 0 {
		p50, p99 := b.quantile(0.5, rows), b.quantile(0.99, rows)
		shown.P50, shown.P99 = &p50, &p99
	}
	return shown
}

// quantile interpolates within a bucket, as Prometheus does. Beyond the last bound it returns
// that bound.
func (b *buckets) quantile(q float64, rows uint64) float64 {
	rank, below, from := q*float64(rows), 0.0, 0.0
	for i, bound := range b.bounds {
		n := float64(b.counts[i])
		if n > 0 && below+n >= rank {
			return from + (bound-from)*(rank-below)/n
		}
		below, from = below+n, bound
	}
	return from
}

// inForce is the configuration of a program. It implements admin.Settings.
type inForce struct{ program *program }

// YAML implements admin.Settings.
func (f inForce) YAML() ([]byte, error) { return f.program.cfg.Load().YAML() }

// Outboxes implements admin.Settings.
func (f inForce) Outboxes() []string {
	names := []string{}
	for _, o := range f.program.cfg.Load().Outboxes() {
		names = append(names, o.Name)
	}
	return names
}
