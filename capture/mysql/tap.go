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
	now, err := s.executed(ctx, sv)
	if err != nil {
		return err
	}
	from := place{set: now}
	s.begin(sv, from.position(), from)
	id := anyServerID()
	for {
		r := &run{source: s, serverID: id, from: from, out: out, begun: begun}
		err := r.read(ctx)
		if !errors.Is(err, errPaused) {
			return s.explainColumns(ctx, err)
		}
		if from, err = s.start(from.position()); err != nil {
			return err
		}
		begun = nil
	}
}
