package mysql

import (
	"context"
	"time"
)

// readyTimeout bounds Ready.
const readyTimeout = 2 * time.Second

// Ready tells whether Open could read the log now, for a relay that polls: nil,
// or what Open would return, which is a *capture.NoStreamError. Other errors say
// nothing about the stream. It changes nothing on the server, ends nobody's
// stream, answers within 2 s, and may be called beside any call but Close of a
// source that has not been opened.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := s.ready(ctx)
	return err
}

// ready makes all checks of Open.
func (s *Source) ready(ctx context.Context) (*server, error) {
	sv, wrong, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	if sv.canStream() {
		if err := s.tryStream(ctx, sv, &wrong); err != nil {
			return nil, err
		}
	}
	return sv, wrong.Err()
}
