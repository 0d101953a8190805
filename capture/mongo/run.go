package mongo

import (
	"context"
	"errors"

	"github.com/sluicebox/sluicebox/capture"
)

// Run reads the change stream until the context or the span ends. Other ends are an ordinary
// error if the connection was lost, for example by an election, a *capture.LostError (see
// Losing the log), and a *capture.NoStreamError if the role may no longer stream or the
// server left its replica set. A receiver that pauses only costs a new cursor.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if s.server == nil {
		return errors.New("run source: Open was not called")
	}

	var until *oplogPosition
	if span.Until != "" {
		end, err := parsePosition(span.Until)
		if err != nil {
			return err
		}
		until = &end
	}

	from, err := parsePosition(s.resume.Start(s, span.From))
	if err != nil {
		return err
	}

	st := &stream{src: s, out: out, at: from, until: until}
	return s.classifyEnd(ctx, st, st.read(ctx))
}

// classifyEnd turns the error that ended a stream into Run's result.
func (s *Source) classifyEnd(ctx context.Context, st *stream, err error) error {
	switch {
	case errors.Is(err, errSpanEnd):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return s.failures.Classify(err, st.progress, s.resume.Last())
}

// read runs the stream and explains its error.
func (st *stream) read(ctx context.Context) (err error) {
	if st.db, err = st.src.stream.db(); err != nil {
		return err
	}
	return st.src.explain(ctx, st.db, &st.at, st.run(ctx))
}

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
