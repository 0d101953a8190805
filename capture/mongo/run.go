package mongo

import (
	"context"
	"errors"

	"github.com/sluicebox/sluicebox/capture"
)

// Run reads the change stream. A lost connection ends it with an ordinary error, an
// election among them. A *capture.LostError: the oplog no longer reaches back, the
// server is another one or was restored, an outbox's collection was dropped or renamed,
// or the stream holds a document that cannot be relayed, or cannot be read at one place
// at all. A *capture.NoStreamError: the role may not stream any more, or the server is
// no longer a member of a replica set.
//
// A receiver that pauses for more than 10 s costs the cursor; another is opened when
// the receiver is back, and no error.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if s.server == nil {
		return errors.New("a source runs only after Open")
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

// classifyEnd says what becomes of a stream that ended with an error.
func (s *Source) classifyEnd(ctx context.Context, st *stream, err error) error {
	switch {
	case errors.Is(err, errSpanEnd):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return s.failures.Classify(err, st.progress, s.resume.Last())
}

// read sends what the stream brings, and says what its end means.
func (st *stream) read(ctx context.Context) (err error) {
	if st.db, err = st.src.stream.db(); err != nil {
		return err
	}
	return st.src.explain(ctx, st.db, &st.at, st.run(ctx))
}
