package mysql

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

var (
	_ capture.Past      = (*Source)(nil)
	_ capture.LogLooker = (*Source)(nil)
)

// Reach implements capture.Past. It asks for the binlog behind the place and hangs up,
// which MariaDB notes in its error log. A server keeps its binlog for as long as it is
// set up to, whoever needs it.
func (s *Source) Reach(ctx context.Context, at capture.Place) error {
	_, _, err := s.findPast(ctx, at)
	return err
}

// Again implements capture.Past. It reads the binlog under a server id of its own,
// which ends nobody's stream. A receiver may pause for as long as the server keeps its
// binlog.
func (s *Source) Again(ctx context.Context, at capture.Place, until store.Position, out chan<- capture.Batch) error {
	sv, from, err := s.findPast(ctx, at)
	if err != nil || s.Compare(until, from.position()) <= 0 {
		return err
	}
	end, err := parsePosition(until)
	if err != nil {
		return otherLog("%v", err)
	}
	if err := s.checkExecuted(ctx, sv, end.set); err != nil {
		return err
	}
	s.begin(sv, from.position(), from)
	if at.Position == "" { // a transaction in parts is to have a place to count from
		select {
		case out <- capture.Batch{Position: from.position()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	} else {
		s.resume.Behind(from.position(), at.Skip)
	}
	return otherIfAnew(s.runFrom(ctx, from.position(), end.set, 0, out))
}

// findPast makes sure that the server has the binlog behind a place, and that it is the
// log that the place is of.
func (s *Source) findPast(ctx context.Context, at capture.Place) (*server, place, error) {
	sv, wrong, err := s.inspect(ctx)
	if err == nil {
		err = wrong.Err()
	}
	if err != nil {
		return nil, place{}, err
	}
	if at.Origin != sv.origin() && (at.Origin != "" || at.Position != "") {
		return nil, place{}, otherLog("the checkpoint is of %s, this is %s", at.Origin, sv.origin())
	}
	if at.Position == "" {
		from, err := s.sinceTime(ctx, sv, at.Since)
		return sv, from, err
	}
	from, err := parsePosition(at.Position)
	if err != nil {
		return nil, place{}, otherLog("%v", err)
	}
	from.inFlavour(sv.flavour)
	if err := s.checkExecuted(ctx, sv, from.set); err != nil {
		return nil, place{}, err
	}
	return sv, from, otherIfAnew(s.try(ctx, sv, from))
}

// checkExecuted makes sure that the server has got as far as a set.
func (s *Source) checkExecuted(ctx context.Context, sv *server, set gtidSet) error {
	now, err := s.executed(ctx, sv)
	if err != nil || now.contains(set) {
		return err
	}
	return otherLog("the server has come to %q, and was read up to %q: it was restored", now, set)
}

// otherIfAnew makes another log of one that began anew, which is a lost one to a relay.
func otherIfAnew(err error) error {
	var other *anewError
	if errors.As(err, &other) {
		return otherLog("%s", other.Reason)
	}
	return err
}

func otherLog(format string, args ...any) error {
	return &capture.OriginError{Reason: fmt.Sprintf(format, args...)}
}
