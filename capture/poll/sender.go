package poll

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/capture"
)

// sender hands batches over and knows which rows are still on their way: sent,
// but perhaps not yet among those that the lanes hold. Read again, they would be
// delivered twice.
//
// The receiver takes one batch after the other, so besides what waits in the
// channel only the last batch that was taken may be on its way.
type sender struct {
	out    chan<- capture.Batch
	resume *capture.Resume
	way    []load // the newest last
}

// load is the ids of one batch; a batch of a poll has rows of one outbox.
type load struct {
	outbox string
	ids    []string
}

func (s *sender) send(ctx context.Context, b capture.Batch) error {
	l := load{ids: make([]string, len(b.Items))} // before the receiver owns the rows
	for i := range b.Items {
		l.outbox, l.ids[i] = b.Items[i].Outbox, b.Items[i].ID
	}
	select {
	case s.out <- b:
	case <-ctx.Done():
		return ctx.Err()
	}
	if len(l.ids) > 0 {
		s.resume.Sent(len(l.ids), "")
	}
	s.way = append(s.way, l)
	s.arrived()
	return nil
}

// arrived forgets the batches that cannot be on their way any more.
func (s *sender) arrived() {
	if most := len(s.out) + 1; len(s.way) > most {
		s.way = append([]load(nil), s.way[len(s.way)-most:]...)
	}
}

// settle sends an empty batch after one with rows: once the receiver takes it,
// the rows are in their lanes.
func (s *sender) settle(ctx context.Context) error {
	for i := range s.way {
		if len(s.way[i].ids) > 0 {
			return s.send(ctx, capture.Batch{})
		}
	}
	return nil
}

// push sends an empty batch behind one with rows, if that is the newest: where they
// leave no room they may have been delivered already, and nobody would know.
func (s *sender) push(ctx context.Context) error {
	if n := len(s.way); n == 0 || len(s.way[n-1].ids) == 0 {
		return nil
	}
	return s.send(ctx, capture.Batch{})
}

// onTheWay returns the ids of an outbox that are on their way.
func (s *sender) onTheWay(outbox string) []string {
	s.arrived()
	var ids []string
	for _, l := range s.way {
		if l.outbox == outbox {
			ids = append(ids, l.ids...)
		}
	}
	return ids
}

// coming returns how many rows may be on their way.
func (s *sender) coming() (rows int) {
	s.arrived()
	for i := range s.way {
		rows += len(s.way[i].ids)
	}
	return rows
}

// landed forgets the rows on their way if lanes hold one of the newest batch, and
// returns how many it forgot. A batch comes to its lanes as a whole, and behind
// those before it.
func (s *sender) landed(held func(outbox string) []string) (rows int) {
	before := s.coming()
	for i, l := range slices.Backward(s.way) {
		if len(l.ids) == 0 {
			continue
		}
		ids := make(map[string]struct{}, len(l.ids))
		for _, id := range l.ids {
			ids[id] = struct{}{}
		}
		if slices.ContainsFunc(held(l.outbox), func(id string) bool { _, ok := ids[id]; return ok }) {
			s.way = s.way[i+1:]
		}
		break
	}
	return before - s.coming()
}
