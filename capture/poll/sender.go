package poll

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/capture"
)

// sender sends batches and tracks the rows in flight: sent, but perhaps not yet held by a
// lane. Reading them again would deliver them twice.
//
// The receiver handles one batch after another. So at most the batches in the channel and
// the last one received are in flight.
type sender struct {
	out      chan<- capture.Batch
	resume   *capture.Resume
	inFlight []sentBatch // newest last
}

// sentBatch holds the ids of one batch. A batch of this package has rows of one outbox.
type sentBatch struct {
	outbox string
	ids    []string
}

func (s *sender) send(ctx context.Context, b capture.Batch) error {
	sent := sentBatch{ids: make([]string, len(b.Items))} // before sending: the receiver then owns the rows
	for i := range b.Items {
		sent.outbox, sent.ids[i] = b.Items[i].Outbox, b.Items[i].ID
	}
	select {
	case s.out <- b:
	case <-ctx.Done():
		return ctx.Err()
	}
	if len(sent.ids) > 0 {
		s.resume.Sent(len(sent.ids), "")
	}
	s.inFlight = append(s.inFlight, sent)
	s.dropReceived()
	return nil
}

// dropReceived removes the batches that cannot be in flight any more.
func (s *sender) dropReceived() {
	if limit := len(s.out) + 1; len(s.inFlight) > limit {
		s.inFlight = append([]sentBatch(nil), s.inFlight[len(s.inFlight)-limit:]...)
	}
}

// sendBarrier sends an empty batch after a batch with rows. Once the receiver takes it,
// those rows are in their lanes.
func (s *sender) sendBarrier(ctx context.Context) error {
	for i := range s.inFlight {
		if len(s.inFlight[i].ids) > 0 {
			return s.send(ctx, capture.Batch{})
		}
	}
	return nil
}

// sendBarrierAfterRows sends an empty batch if the newest batch in flight has rows. Those
// rows may fill the buffer and be delivered already; without the barrier, the source would
// never find that out.
func (s *sender) sendBarrierAfterRows(ctx context.Context) error {
	if n := len(s.inFlight); n == 0 || len(s.inFlight[n-1].ids) == 0 {
		return nil
	}
	return s.send(ctx, capture.Batch{})
}

// inFlightIDs returns the ids of an outbox that are in flight.
func (s *sender) inFlightIDs(outbox string) []string {
	s.dropReceived()
	var ids []string
	for _, sent := range s.inFlight {
		if sent.outbox == outbox {
			ids = append(ids, sent.ids...)
		}
	}
	return ids
}

// inFlightRows returns the maximum number of rows in flight.
func (s *sender) inFlightRows() (rows int) {
	s.dropReceived()
	for i := range s.inFlight {
		rows += len(s.inFlight[i].ids)
	}
	return rows
}

// dropLanded removes rows in flight if lanes hold one of the newest batch, and returns the
// number removed. This is safe because a batch reaches its lanes as a whole and after the
// batches before it.
func (s *sender) dropLanded(held func(outbox string) []string) (rows int) {
	before := s.inFlightRows()
	for i, sent := range slices.Backward(s.inFlight) {
		if len(sent.ids) == 0 {
			continue
		}
		ids := make(map[string]struct{}, len(sent.ids))
		for _, id := range sent.ids {
			ids[id] = struct{}{}
		}
		if slices.ContainsFunc(held(sent.outbox), func(id string) bool { _, ok := ids[id]; return ok }) {
			s.inFlight = s.inFlight[i+1:]
		}
		break
	}
	return before - s.inFlightRows()
}
