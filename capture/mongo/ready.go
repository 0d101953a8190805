package mongo

import (
	"context"
	"time"
)

const (
	// readyTimeout bounds Ready.
	readyTimeout = 3 * time.Second
	// tryTimeout bounds the wait for the first answer in tryStream.
	tryTimeout = 2 * time.Second
)

// Ready reports whether Open could read the log now, for a relay that polls. It returns nil
// or the *capture.NoStreamError that Open would return; other errors say nothing about the
// stream. It changes nothing on the server, disturbs no stream, and returns within 3 s. It
// may run concurrently with any call except Close.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := s.ready(ctx)
	return err
}

// ready runs all checks of Open.
func (s *Source) ready(ctx context.Context) (*server, error) {
	sv, db, faults, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	if sv.streamFault() == nil {
		if err := s.checkCollections(ctx, db, &faults); err != nil {
			return nil, err
		}
		now := sv.endPosition()
		if err := faults.AddErr(s.tryStream(ctx, db, sv, &now)); err != nil {
			return nil, err
		}
	}
	return sv, faults.Err()
}
