package mongo

import (
	"context"

	"github.com/sluicebox/sluicebox/capture"
)

// Tap sends the rows that commit from now on, beside a relay that runs and without
// changing anything that it works with: it reads a change stream of its own. begun is
// called once when it reads.
//
// It may be called once, in place of Open and Run, and there is nothing to
// acknowledge. It returns when the context ends (its error), or with any error of
// Open and Run; it does not connect again, since what is committed meanwhile would
// be left out.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	sv, err := s.ready(ctx)
	if err != nil {
		return err
	}
	from := sv.endPosition()
	s.resetState(sv, from)
	st := &stream{src: s, out: out, at: from, onStart: begun}
	if err := st.read(ctx); ctx.Err() == nil {
		return err
	}
	return ctx.Err()
}
