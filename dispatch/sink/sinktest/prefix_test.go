package sinktest_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store"
)

// partedLog is a log of several parts and a sink that appends to it. A message goes to the
// part of its group.
type partedLog struct {
	mu      sync.Mutex
	parts   [3][]string
	refused []string
	stopped bool

	// wholeRuns: a refused message takes those of its lane along.
	wholeRuns bool
}

func (l *partedLog) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Prefix, MaxItems: 100, MaxBytes: 1 << 20}
}

func (l *partedLog) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || ctx.Err() != nil {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable, Reason: store.ReasonGateway, Detail: "no broker"}}
	}
	var res sink.Result
	for len(msgs) > 0 {
		n := slices.IndexFunc(msgs, func(m sink.Message) bool { return m.Lane != msgs[0].Lane })
		if n < 0 {
			n = len(msgs)
		}
		res.Items = append(res.Items, l.appendRun(msgs[:n])...)
		msgs = msgs[n:]
	}
	return res
}

// appendRun stores the messages of a lane up to the first refused one.
func (l *partedLog) appendRun(msgs []sink.Message) []sink.Outcome {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(msgs[0].Group.Name))
	part := &l.parts[hash.Sum32()%uint32(len(l.parts))]
	bad := slices.IndexFunc(msgs, func(m sink.Message) bool { return slices.Contains(l.refused, m.ID) })
	out := make([]sink.Outcome, len(msgs))
	for i := range msgs {
		switch {
		case bad < 0 || i < bad && !l.wholeRuns:
			*part = append(*part, msgs[i].ID)
			out[i] = sink.Outcome{Class: sink.Delivered}
		case i == bad || l.wholeRuns:
			out[i] = sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: fmt.Sprintf("message %s is too large", msgs[bad].ID)}
		default:
			out[i] = sink.Outcome{Class: sink.NotSent}
		}
	}
	return out
}

func (l *partedLog) Refuse(ids ...string) { l.refused = ids }
func (l *partedLog) Stop()                { l.stopped = true }
func (l *partedLog) Start()               { l.stopped = false }
func (l *partedLog) Stored() []string     { return slices.Concat(l.parts[:]...) }

func TestLogSuite(t *testing.T) {
	for _, wholeRuns := range []bool{false, true} {
		t.Run(fmt.Sprintf("whole runs %v", wholeRuns), func(t *testing.T) {
			sinktest.RunLog(t, sinktest.LogHarness{Kind: "EVENT", New: func(testing.TB) (sink.Sink, sinktest.Log) {
				l := &partedLog{wholeRuns: wholeRuns}
				return l, l
			}})
		})
	}
}
