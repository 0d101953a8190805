package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

var (
	_ capture.Past      = (*Source)(nil)
	_ capture.LogLooker = (*Source)(nil)
)

// Reach implements capture.Past. It opens a change stream behind the place and asks it
// once. A server keeps its oplog up to its size, whoever needs it.
func (s *Source) Reach(ctx context.Context, at capture.Place) error {
	_, _, err := s.findPast(ctx, at)
	return err
}

// Again implements capture.Past. It reads a change stream of its own. A receiver may
// pause for as long as the oplog reaches back.
func (s *Source) Again(ctx context.Context, at capture.Place, until store.Position, out chan<- capture.Batch) error {
	sv, from, err := s.findPast(ctx, at)
	if err != nil {
		return err
	}
	end, err := parsePosition(until)
	if err != nil {
		return otherLog("%v", err)
	}
	if end.compare(&from) <= 0 {
		return nil
	}
	if err := s.checkPast(ctx, sv, &end); err != nil {
		return err
	}
	s.begin(sv, from)
	s.resume.Behind(from.position(), at.Skip)
	st := &stream{src: s, out: out, at: from, until: &end}
	s.resume.Start(s, from.position())
	return s.ended(ctx, st, st.read(ctx))
}

// findPast makes sure that the oplog holds what follows a place, and that it is the one
// that the place is of.
func (s *Source) findPast(ctx context.Context, at capture.Place) (*server, place, error) {
	sv, err := s.ready(ctx)
	if err != nil {
		return nil, place{}, err
	}
	if !sv.hasOrigin(at.Origin) && (at.Origin != "" || at.Position != "") {
		return nil, place{}, otherLog("the checkpoint is of %q, this is %s", at.Origin, sv.origin())
	}
	db, err := s.stream.db()
	if err != nil {
		return nil, place{}, err
	}
	var from place
	if at.Position == "" {
		from, err = sinceTime(ctx, db, at.Since)
	} else if from, err = parsePosition(at.Position); err != nil {
		err = otherLog("%v", err)
	} else {
		err = s.checkPast(ctx, sv, &from)
	}
	if err != nil {
		return nil, place{}, err
	}
	err = s.tryBehind(ctx, db, sv, &from)
	if unread := new(fault.LogError); errors.As(err, &unread) {
		err = lost("the checkpoint cannot be taken up: %v", unread)
	}
	return sv, from, err
}

// checkPast makes sure that the server has got as far as a place.
func (s *Source) checkPast(ctx context.Context, sv *server, at *place) error {
	db, err := s.stream.db()
	if err != nil {
		return err
	}
	err = sv.checkBehind(ctx, db, at)
	if restored := new(capture.LostError); errors.As(err, &restored) {
		err = otherLog("%s", restored.Reason)
	}
	return err
}

// early is by how much an event's time may be behind that of its place in the oplog.
const early = 10 * time.Second

// sinceTime is a place in front of all that was committed at a time or later. The
// stream of a set that is not old begins at any time, so the oplog is looked at, by a
// role that may.
func sinceTime(ctx context.Context, db *mongo.Database, since time.Time) (place, error) {
	first, err := oplogBegin(ctx, db)
	if err != nil {
		return place{}, err
	}
	if since.Before(time.Unix(int64(first.T), 0)) {
		return place{}, lost("%s", beginsAt(first))
	}
	from := bson.Timestamp{T: uint32(since.Add(-early).Unix()), I: 1}
	if from.Before(first) {
		from = first
	}
	return place{at: from}, nil
}

// oplogBegin returns the time of the oldest entry of the oplog, zero for a role that may
// not look.
func oplogBegin(ctx context.Context, db *mongo.Database) (first bson.Timestamp, err error) {
	raw, err := ask(ctx, db.Client().Database("local"), bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 1}})
	if err != nil && !denied(err) {
		return first, fmt.Errorf("ask where the oplog begins: %w", err)
	}
	first.T, first.I, _ = raw.Lookup("cursor", "firstBatch", "0", "ts").TimestampOK()
	return first, nil
}

func beginsAt(first bson.Timestamp) string {
	return "the oplog begins at " + time.Unix(int64(first.T), 0).UTC().Format(time.DateTime) + " UTC"
}

// Lost implements capture.LogLooker. It reads the oldest entry of the oplog; of a role
// that may not it says that all may be there.
func (s *Source) Lost(ctx context.Context, of []store.Checkpoint) ([]string, error) {
	db, err := s.stream.db()
	if err != nil {
		return nil, err
	}
	sv, err := identify(ctx, db)
	if err != nil {
		return nil, err
	}
	first, err := oplogBegin(ctx, db)
	if err != nil {
		return nil, err
	}
	why := make([]string, len(of))
	for i := range of {
		from, err := parsePosition(of[i].Position)
		if err == nil && sv.hasOrigin(of[i].Origin) && first.After(from.at) {
			why[i] = beginsAt(first) + ", which is behind it"
		}
	}
	return why, nil
}

func otherLog(format string, args ...any) error {
	return &capture.OriginError{Reason: fmt.Sprintf(format, args...)}
}
