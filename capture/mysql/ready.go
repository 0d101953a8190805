package mysql

import (
	"context"
	"time"
)

// readyTimeout limits Ready.
const readyTimeout = 2 * time.Second

// Ready reports whether Open could read the log now, for a relay that polls. It returns
// nil, or the *capture.NoStreamError that Open would return. Other errors say nothing
// about the stream. Ready changes nothing on the server, ends no other stream and answers
// within 2 s. It may run concurrently with any call except Close, on a source that has
// not been opened.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := s.ready(ctx)
	return err
}

// ready runs all checks of Open.
func (s *Source) ready(ctx context.Context) (*server, error) {
	sv, faults, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	if sv.canStream() {
		if err := s.tryStream(ctx, sv, &faults); err != nil {
			return nil, err
		}
	}
	return sv, faults.Err()
}
