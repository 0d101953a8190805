package spill

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// benchCore does nothing, because a benchmark moves no lane.
type benchCore struct{}

func (benchCore) Wake(*lane.Lane)      {}
func (benchCore) Unclaim(*lane.Row)    {}
func (benchCore) Enqueue(lane.Outcome) {}
func (benchCore) Left(*lane.Row)       {}

// polledLane returns a spiller as while polling, and its lane, with rows in memory.
func polledLane(rows int) (*Spiller, *lane.Lane) {
	lanes := lane.NewSet(lane.Config{
		BatchRows: 100, Senders: 2, ClaimAhead: 1, BufferRows: 2 * rows, BufferBytes: 1 << 40, Random: func() float64 { return 0 },
		Breaker: &breaker.Config{Backoff: func(int) time.Duration { return time.Second }, MaxConcurrentEager: 1},
		Limits:  func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20} },
	})
	sp := New(Config{BatchRows: 100, BufferRows: 2 * rows, Whole: true}, lanes, benchCore{})
	l := sp.Lane(lane.Name{LaneKey: store.LaneKey{Outbox: "a", Kind: "EVENT", Group: store.GroupOf("g")}})
	for n := range rows {
		sp.Append(l, benchRow(l, n))
	}
	return sp, l
}

func benchRow(l *lane.Lane, n int) *lane.Row {
	return &lane.Row{Item: store.Item{Ref: store.Ref{Outbox: "a", ID: fmt.Sprint(n)}, Kind: "EVENT", Group: l.Name.Group, Seq: store.Seq(n + 1)}}
}

// BenchmarkAppendBehindSpilled appends rows to a lane that is being spilled from its front, behind the rows
// that it keeps in memory.
func BenchmarkAppendBehindSpilled(b *testing.B) {
	for _, rows := range []int{100, 40_000} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			sp, l := polledLane(rows)
			sp.Rows(l)
			l.HasSpilled = true
			n := rows
			for b.Loop() {
				sp.Append(l, benchRow(l, n))
				n++
			}
		})
	}
}

// BenchmarkNextHeldBack asks for rows to spill while the failure of the head of their lane is being written.
func BenchmarkNextHeldBack(b *testing.B) {
	for _, rows := range []int{100, 40_000} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			sp, l := polledLane(rows)
			l.Write()
			sp.Rows(l)
			for b.Loop() {
				if items := sp.Next(5000); len(items) > 0 {
					b.Fatal("rows pass the head")
				}
			}
		})
	}
}

// BenchmarkRetried retries the head of a lane of which no row is spilled.
func BenchmarkRetried(b *testing.B) {
	for _, rows := range []int{100, 40_000} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			sp, l := polledLane(rows)
			for b.Loop() {
				sp.Retried(l)
			}
		})
	}
}

// BenchmarkSpillOneByOne spills the rows of a lane one by one from its front, as the rows that are overtaken.
func BenchmarkSpillOneByOne(b *testing.B) {
	for _, rows := range []int{100, 40_000} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				sp, l := polledLane(rows)
				b.StartTimer()
				for _, rw := range l.Rows {
					sp.Row(l, rw)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows*b.N), "ns/row")
		})
	}
}
