package mysql

import (
	"context"
	"errors"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

var (
	_ capture.HistoryReader    = (*Source)(nil)
	_ capture.RetentionChecker = (*Source)(nil)
)

// CheckReachable implements capture.HistoryReader. It requests the binlog from the
// position and closes the connection, which MariaDB writes to its error log. The server
// keeps its binlog as configured, whether or not anyone needs it.
func (s *Source) CheckReachable(ctx context.Context, at capture.StartPoint) error {
	_, _, err := s.locateHistory(ctx, at)
	return err
}

// ReadRange implements capture.HistoryReader. It reads the binlog with a random server
// id, so it ends no other stream. The receiver may pause for as long as the server keeps
// its binlog.
func (s *Source) ReadRange(ctx context.Context, at capture.StartPoint, until store.Position, out chan<- capture.Batch) error {
	sv, from, err := s.locateHistory(ctx, at)
	if err != nil || s.Compare(until, from.format()) <= 0 {
		return err
	}

	end, err := parsePosition(until)
	if err != nil {
		return fault.OtherLogf("%v", err)
	}

	if err := s.checkExecuted(ctx, sv, end.set); err != nil {
		return err
	}
	s.resetState(sv, from.format(), from)
	if at.Skip == 0 { // else the rows of a transaction are counted
		s.since = at.Since
	}
	if at.Position == "" { // a transaction in parts needs a position to count from
		select {
		case out <- capture.Batch{Position: from.format()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	} else {
		s.resume.ResetPartial(from.format(), at.Skip)
	}

	return originErrorIfReplaced(s.runFrom(ctx, from.format(), end.set, 0, out))
}

// locateHistory verifies that the server has the binlog behind a position, and that the
// position belongs to this log.
func (s *Source) locateHistory(ctx context.Context, at capture.StartPoint) (*server, binlogPosition, error) {
	sv, faults, err := s.inspect(ctx)
	if err == nil {
		err = faults.Err()
	}
	if err != nil {
		return nil, binlogPosition{}, err
	}

	if at.Origin != sv.origin() && (at.Origin != "" || at.Position != "") {
		return nil, binlogPosition{}, fault.OtherLogf("checkpoint belongs to %s, this server is %s", at.Origin, sv.origin())
	}
	if at.Position == "" {
		from, err := s.positionAtTime(ctx, sv, at.Since)
		return sv, from, err
	}

	from, err := parsePosition(at.Position)
	if err != nil {
		return nil, binlogPosition{}, fault.OtherLogf("%v", err)
	}

	from.resolveFlavour(sv.flavour)
	if err := s.checkExecuted(ctx, sv, from.set); err != nil {
		return nil, binlogPosition{}, err
	}
	return sv, from, originErrorIfReplaced(s.tryPosition(ctx, sv, from))
}

// checkExecuted verifies that the server has executed a set.
func (s *Source) checkExecuted(ctx context.Context, sv *server, set mysql.GTIDSet) error {
	now, err := s.control.executedGTIDs(ctx, sv)
	if err != nil || contains(now, set) {
		return err
	}
	return fault.OtherLogf("server has executed %q but was read up to %q: server was restored", now, set)
}

// originErrorIfReplaced turns the error for a replaced log into a *capture.OriginError.
// For a running relay, such a log is lost instead.
func originErrorIfReplaced(err error) error {
	var replaced *logReplacedError
	if errors.As(err, &replaced) {
		return fault.OtherLogf("%s", replaced.Reason)
	}
	return err
}
