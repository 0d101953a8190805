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
	out      chan<- capture.Batch
	resume   *capture.Resume
	inFlight []sentBatch // the newest last
}

// sentBatch is the ids of one batch; a batch of a poll has rows of one outbox.
type sentBatch struct {
	outbox string
	ids    []string
}

func (s *sender) send(ctx context.Context, b capture.Batch) error {
	l := sentBatch{ids: make([]string, len(b.Items))} // before the receiver owns the rows
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
	s.inFlight = append(s.inFlight, l)
	s.dropReceived()
	return nil
}

// dropReceived forgets the batches that cannot be on their way any more.
func (s *sender) dropReceived() {
	if most := len(s.out) + 1; len(s.inFlight) > most {
		s.inFlight = append([]sentBatch(nil), s.inFlight[len(s.inFlight)-most:]...)
	}
}

// sendBarrier sends an empty batch after one with rows: once the receiver takes it,
// the rows are in their lanes.
func (s *sender) sendBarrier(ctx context.Context) error {
	for i := range s.inFlight {
		if len(s.inFlight[i].ids) > 0 {
			return s.send(ctx, capture.Batch{})
		}
	}
	return nil
}

// sendBarrierAfterRows sends an empty batch behind one with rows, if that is the newest: where they
// leave no room they may have been delivered already, and nobody would know.
func (s *sender) sendBarrierAfterRows(ctx context.Context) error {
	if n := len(s.inFlight); n == 0 || len(s.inFlight[n-1].ids) == 0 {
		return nil
	}
	return s.send(ctx, capture.Batch{})
}

// inFlightIDs returns the ids of an outbox that are on their way.
func (s *sender) inFlightIDs(outbox string) []string {
	s.dropReceived()
	var ids []string
	for _, l := range s.inFlight {
		if l.outbox == outbox {
			ids = append(ids, l.ids...)
		}
	}
	return ids
}

// inFlightRows returns how many rows may be on their way.
func (s *sender) inFlightRows() (rows int) {
	s.dropReceived()
	for i := range s.inFlight {
		rows += len(s.inFlight[i].ids)
	}
	return rows
}

// dropLanded forgets the rows on their way if lanes hold one of the newest batch, and
// returns how many it forgot. A batch comes to its lanes as a whole, and behind
// those before it.
func (s *sender) dropLanded(held func(outbox string) []string) (rows int) {
	before := s.inFlightRows()
	for i, l := range slices.Backward(s.inFlight) {
		if len(l.ids) == 0 {
			continue
		}
		ids := make(map[string]struct{}, len(l.ids))
		for _, id := range l.ids {
			ids[id] = struct{}{}
		}
		if slices.ContainsFunc(held(l.outbox), func(id string) bool { _, ok := ids[id]; return ok }) {
			s.inFlight = s.inFlight[i+1:]
		}
		break
	}
	return before - s.inFlightRows()
}
