package mysql

import (
	"context"
	"errors"

	"github.com/sluicebox/sluicebox/capture"
)

// Tap sends the rows that commit from now on. It runs beside a relay and changes nothing
// that the relay uses: it reads the binlog with a random server id. begun is called once
// when the stream starts.
//
// Tap may be called once, in place of Open and Run, and nothing is acknowledged. It
// returns the context's error when the context ends, or any error of Open and Run. It
// does not reconnect, because rows committed meanwhile would be missing.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	sv, err := s.ready(ctx)
	if err != nil {
		return err
	}

	now, err := s.executedGTIDs(ctx, sv)
	if err != nil {
		return err
	}

	from := binlogPosition{set: now}
	s.resetState(sv, from.format(), from)
	id := anyServerID()
	for {
		r := &dumpRun{source: s, serverID: id, from: from, out: out, onStart: begun}
		err := r.read(ctx)
		if !errors.Is(err, errPaused) {
			return s.explainMissingColumns(ctx, err)
		}
		if from, err = s.resumePosition(from.format()); err != nil {
			return err
		}
		begun = nil
	}
}
