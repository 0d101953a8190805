package lane

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Requests that are answered before their rows are due leave memory while no claim looks at them,
// although one request before them hangs.
func TestAnsweredRequestsLeave(t *testing.T) {
	var f Fresh
	now := time.Unix(1, 0)
	f.watch(&Request{}, now)
	for range 100 * minCompact {
		req := &Request{}
		f.watch(req, now)
		req.answered = true
	}
	if n := f.sent.Len(); n > minCompact {
		t.Errorf("%d requests are remembered, want at most %d", n, minCompact)
	}
}

// A fresh row waits for no row of a replay, although that one has waited for longer.
func TestFreshRowPassesReplay(t *testing.T) {
	s := NewSet(Config{
		BatchRows: 1, Senders: 4, BufferRows: 10, BufferBytes: 100, Breaker: &breaker.Config{},
		Limits: func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 100} },
	})
	jobs, now := replay.NewJobs[Owner](), time.Unix(1, 0)
	item := store.Item{Ref: store.Ref{Outbox: "a", ID: "1"}, Group: store.GroupOf("g"), Payload: []byte("x"), PayloadSize: 1, Seq: 1}
	replayed, live := &Row{Item: item, Job: jobs.Open("job")}, &Row{Item: item, FreshUntil: now.Add(time.Second)}
	for _, rw := range []*Row{replayed, live} {
		l, _ := s.Ensure(s.NameOf(&item))
		if rw == replayed {
			l = s.EnsureReplay(rw.Job, &item)
		}
		l.Rows = append(l.Rows, rw)
		s.Queue(l)
	}
	s.Requests.Fresh.Allowed = true
	s.StartFresh(now)
	if sent := s.Requests.Unsent(); len(sent) != 1 || sent[0].Runs[0].Rows[0] != live {
		t.Errorf("got %d requests, want one with the fresh row", len(sent))
	}
}
