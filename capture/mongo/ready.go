package mongo

import (
	"context"
	"time"
)

const (
	// readyTimeout bounds Ready.
	readyTimeout = 3 * time.Second
	// constraintTimeout bounds the wait for the first answer of a stream that is tried.
	tryTimeout = 2 * time.Second
)

// Ready tells whether Open could read the log now, for a relay that polls: nil, or
// what Open would return, which is a *capture.NoStreamError. Other errors say nothing
// about the stream. It changes nothing on the server, ends nobody's stream, answers
// within 3 s, and may be called beside any call but Close.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := s.ready(ctx)
	return err
}

// ready makes all checks of Open.
func (s *Source) ready(ctx context.Context) (*server, error) {
	sv, db, wrong, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	if sv.streamFault() == nil {
		if err := s.checkCollections(ctx, db, &wrong); err != nil {
			return nil, err
		}
		now := sv.endPosition()
		if err := wrong.AddErr(s.tryStream(ctx, db, sv, &now)); err != nil {
			return nil, err
		}
	}
	return sv, wrong.Err()
}
