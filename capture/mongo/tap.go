package mongo

import (
	"context"

	"github.com/sluicebox/sluicebox/capture"
)

// Tap sends the rows committed from now on. It reads a change stream of its own and changes
// nothing that a running relay uses. It calls begun once the stream is open.
//
// Call it once, in place of Open and Run; nothing is acknowledged. It returns ctx.Err()
// when the context ends, or any error of Open and Run. It does not reconnect, because it
// would miss rows committed in between.
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
