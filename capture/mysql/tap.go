package mysql

import (
	"context"
	"errors"

	"github.com/sluicebox/sluicebox/capture"
)

// Tap sends the rows that commit from now on, beside a relay that runs and
// without changing anything that it works with: it reads the binlog under a server
// id of its own. begun is called once when it reads.
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
