package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// jobKey is the _id of a replay.
type jobKey struct {
	Relay string `bson:"relay"`
	Job   string `bson:"job"`
}

// jobDocument is a replay in sluicebox_replay. The requester writes Desired and Spec, the
// leader the rest. Nth is the number of the request, which orders the replays.
type jobDocument struct {
	Key         jobKey             `bson:"_id"`
	Nth         int64              `bson:"nth"`
	Desired     string             `bson:"wish"`
	Spec        string             `bson:"spec"`
	State       string             `bson:"state"`
	Reason      string             `bson:"why"`
	Source      string             `bson:"source"`
	Until       checkpointDocument `bson:"until"`
	UntilAt     *bson.DateTime     `bson:"untilAt"`
	Position    string             `bson:"cursorPosition"`
	Skip        int64              `bson:"cursorSkip"`
	Total       int64              `bson:"total"`
	Sent        int64              `bson:"sent"`
	Skipped     int64              `bson:"skipped"`
	Refused     int64              `bson:"refused"`
	RequestedAt *bson.DateTime     `bson:"askedAt"`
	StartedAt   *bson.DateTime     `bson:"beganAt"`
	FinishedAt  *bson.DateTime     `bson:"finishedAt"`
}

// Jobs implements store.ReplayLister.
func (s *Store) Jobs(ctx context.Context) ([]store.Job, error) {
	var list []store.Job
	opts := options.Find().SetSort(bson.D{{Key: "nth", Value: -1}})
	err := s.show(ctx, ownReplay, bson.D{{Key: "_id.relay", Value: s.name}}, opts, func(doc bson.Raw) error {
		var d jobDocument
		err := bson.Unmarshal(doc, &d)
		list = append(list, d.job())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	return list, nil
}

func (d *jobDocument) job() store.Job {
	return store.Job{
		ID: d.Key.Job, Desired: store.DesiredState(d.Desired), Spec: d.Spec, State: store.JobState(d.State), Reason: d.Reason, Source: d.Source,
		Until:   store.Checkpoint{Origin: d.Until.Origin, Position: store.Position(d.Until.Position), Seq: store.Seq(d.Until.Seq)},
		UntilAt: timeOrZero(d.UntilAt), Cursor: store.ReplayCursor{Position: store.Position(d.Position), Skip: int(d.Skip)},
		Total: d.Total, Sent: d.Sent, Skipped: d.Skipped, Refused: d.Refused,
		RequestedAt: timeOrZero(d.RequestedAt), StartedAt: timeOrZero(d.StartedAt), FinishedAt: timeOrZero(d.FinishedAt),
	}
}

// rowKey is the _id of a replay row and of a replay error. N is the row's number, or a
// bound to compare it with.
type rowKey struct {
	Relay string `bson:"relay"`
	Job   string `bson:"job"`
	N     any    `bson:"n"`
}

// afterN is the filter for documents of a replay after an n, by their _id.
func (s *Store) afterN(id string, n int64) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: rowKey{s.name, id, n}}, {Key: "$lt", Value: rowKey{s.name, id, bson.MaxKey{}}}}}}
}

// errorDocument is a refused row in sluicebox_replay_error.
type errorDocument struct {
	Key    rowKey        `bson:"_id"`
	Outbox string        `bson:"outbox"`
	ID     string        `bson:"id"`
	Kind   string        `bson:"kind"`
	Group  *string       `bson:"group"`
	Reason string        `bson:"reason"`
	At     bson.DateTime `bson:"at"`
}

// JobErrors implements store.ReplayLister.
func (s *Store) JobErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	err := replays.CheckLimit(limit)
	var list []store.ReplayError
	if err == nil {
		opts := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit))
		err = s.show(ctx, ownReplayErr, s.afterN(id, 0), opts, func(doc bson.Raw) error {
			var d errorDocument
			err := bson.Unmarshal(doc, &d)
			n, _ := d.Key.N.(int64)
			list = append(list, store.ReplayError{
				N: n, Ref: store.Ref{Outbox: d.Outbox, ID: d.ID}, Kind: d.Kind, Group: groupOf(d.Group), Reason: d.Reason, At: d.At.Time().UTC(),
			})
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read errors of replay %s: %w", id, err)
	}
	return list, nil
}

// stamp sets a time field of a replay to the server's time, unless it is already set.
func (c *conn) stamp(ctx context.Context, job jobKey, field string) error {
	_, err := update(ctx, c.ownCollection(ownReplay), bson.D{{Key: "_id", Value: job}, {Key: field, Value: nil}},
		bson.D{{Key: "$currentDate", Value: bson.D{{Key: field, Value: true}}}})
	return err
}

// SaveJob implements store.ReplayWriter. The end time is truncated to milliseconds.
func (s *Store) SaveJob(ctx context.Context, epoch store.Epoch, j store.Job) error {
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
		key := jobKey{s.name, j.ID}
		found, err := setOne(ctx, on.ownCollection(ownReplay), key, bson.D{
			{Key: "state", Value: string(j.State)}, {Key: "why", Value: errortext.Sanitize(j.Reason, 0, false)}, {Key: "source", Value: j.Source},
			{Key: "until", Value: checkpointDocument{j.Until.Origin, string(j.Until.Position), int64(j.Until.Seq)}}, {Key: "untilAt", Value: timeOrNull(j.UntilAt)},
		})
		if err == nil && !found {
			return store.ErrNoJob
		}
		if err == nil && j.State.Started() {
			err = on.stamp(ctx, key, "beganAt")
		}
		if err == nil && j.State.Ended() {
			err = on.stamp(ctx, key, "finishedAt")
		}
		return err
	})

	if err == nil && j.State.Ended() {
		err = s.deleteOldJobs(ctx, epoch)
	}

	if err != nil {
		return fmt.Errorf("save replay %s: %w", j.ID, Explain(err))
	}

	return nil
}

// SetRowCounts implements store.ReplayWriter.
func (s *Store) SetRowCounts(ctx context.Context, epoch store.Epoch, id string, total, skipped int64) error {
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
		found, err := setOne(ctx, on.ownCollection(ownReplay), jobKey{s.name, id}, bson.D{{Key: "total", Value: total}, {Key: "skipped", Value: skipped}})
		if err == nil && !found {
			return store.ErrNoJob
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("count rows of replay %s: %w", id, Explain(err))
	}
	return nil
}

// deleteOldJobs deletes ended replays that exceed the count or age limit. On a change of
// leader it leaves them to the next leader, because the replay of this call is already
// saved.
func (s *Store) deleteOldJobs(ctx context.Context, epoch store.Epoch) error {
	var ids []string
	err := s.read(ctx, func(ctx context.Context, on *conn) (err error) {
		ids, err = s.oldJobs(ctx, on.ownCollection(ownReplay))
		return err
	})
	for i := 0; i < len(ids) && err == nil; i++ {
		err = s.deleteJob(ctx, epoch, ids[i])
	}

	if errors.Is(err, store.ErrNotLeader) {
		return nil
	}
	return err
}

// oldJobs returns ended replays that exceed the count or age limit.
func (s *Store) oldJobs(ctx context.Context, in *mongo.Collection) (ids []string, err error) {
	mine := bson.E{Key: "_id.relay", Value: s.name}
	age := bson.D{{Key: "$lt", Value: bson.A{"$finishedAt", bson.D{{Key: "$subtract", Value: bson.A{"$$NOW", store.EndedJobRetention.Milliseconds()}}}}}}
	ended := bson.E{Key: "finishedAt", Value: bson.D{{Key: "$ne", Value: nil}}}
	old := bson.A{bson.D{ended, {Key: "$expr", Value: age}}}
	opts := options.Find().SetSort(bson.D{{Key: "finishedAt", Value: -1}, {Key: "nth", Value: -1}}).SetSkip(store.MaxEndedJobs).SetLimit(1).
		SetProjection(project("finishedAt", "nth"))
	err = forEach(ctx, commandTimeout, in, bson.D{mine, ended}, opts, func(doc bson.Raw) error {
		at, _ := doc.Lookup("finishedAt").DateTimeOK()
		nth, _ := doc.Lookup("nth").AsInt64OK()
		last := bson.DateTime(at)
		old = append(old, bson.D{{Key: "finishedAt", Value: bson.D{{Key: "$lt", Value: last}}}},
			bson.D{{Key: "finishedAt", Value: last}, {Key: "nth", Value: bson.D{{Key: "$lte", Value: nth}}}})
		return nil
	})
	if err != nil {
		return nil, err
	}

	filter := bson.D{mine, {Key: "state", Value: bson.D{{Key: "$in", Value: replays.EndedStates()}}}, {Key: "$or", Value: old}}
	err = forEach(ctx, commandTimeout, in, filter, options.Find().SetProjection(project("_id")), func(doc bson.Raw) error {
		ids = append(ids, doc.Lookup("_id", "job").StringValue())
		return nil
	})
	return ids, err
}

// deleteJob deletes a replay and its errors in transactions of bounded size. It keeps a
// replay that still has rows.
func (s *Store) deleteJob(ctx context.Context, epoch store.Epoch, id string) error {
	for more := true; more; {
		err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
			rows := false
			opts := options.Find().SetLimit(1).SetProjection(project("_id"))
			err := forEach(ctx, commandTimeout, on.ownCollection(ownReplayRow), s.afterN(id, 0), opts, func(bson.Raw) error {
				rows = true
				return nil
			})
			if more = false; err != nil || rows {
				return err
			}
			n, err := s.clear(ctx, on.ownCollection(ownReplayErr), id, maxSpillRows)
			if more = n == maxSpillRows; err != nil || more {
				return err
			}
			_, err = remove(ctx, on.ownCollection(ownReplay), bson.D{{Key: "_id", Value: jobKey{s.name, id}}})
			return err
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// ReplayRows implements store.ReplayReader.
func (s *Store) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) ([][]store.ReplayRow, error) {
	err := replays.CheckLimit(each)
	if len(from) == 0 && err == nil {
		return nil, nil
	}

	lists := make([][]store.ReplayRow, len(from))
	if err == nil {
		err = s.read(ctx, func(ctx context.Context, on *conn) (err error) {
			for i := 0; i < len(from) && err == nil; i++ {
				lists[i], err = s.readReplayRows(ctx, on, id, &from[i], each)
			}
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read rows of replay %s: %w", id, Explain(err))
	}
	return lists, nil
}

// inLane is the filter for rows of a lane by n.
func (s *Store) inLane(id, outbox string, lane bson.Binary, n bson.D) bson.D {
	return bson.D{
		{Key: "_id.relay", Value: s.name}, {Key: "_id.job", Value: id}, {Key: "outbox", Value: outbox}, {Key: "lane", Value: lane}, {Key: "_id.n", Value: n},
	}
}

func (s *Store) readReplayRows(ctx context.Context, on *conn, id string, from *store.ReplayRange, limit int) (rows []store.ReplayRow, err error) {
	filter := s.inLane(id, from.Outbox, hashOf(from.Lane), bson.D{{Key: "$gt", Value: from.After}})
	opts := options.Find().SetSort(bson.D{{Key: "_id.n", Value: 1}}).SetLimit(int64(limit))
	err = forEach(ctx, commandTimeout, on.ownCollection(ownReplayRow), filter, opts, func(doc bson.Raw) error {
		d, err := rowOf(doc)
		rows = append(rows, d.row())
		return err
	})
	return rows, err
}

// ReplayLanes implements store.ReplayReader. It walks the rows by n and skips lanes that
// have earlier rows.
func (s *Store) ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]store.ReplayLane, error) {
	err := replays.CheckLimit(limit)
	var lanes []store.ReplayLane
	if err == nil {
		err = s.read(ctx, func(ctx context.Context, on *conn) (err error) {
			lanes, err = s.readLanes(ctx, on, id, after, limit)
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read lanes of replay %s: %w", id, Explain(err))
	}
	return lanes, nil
}

func (s *Store) readLanes(ctx context.Context, on *conn, id string, after int64, limit int) (lanes []store.ReplayLane, err error) {
	type lane struct{ outbox, hash string }
	known := map[lane]bool{}
	opts := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(project("_id", "outbox", "lane", "kind", "group"))
	err = forEach(ctx, commandTimeout, on.ownCollection(ownReplayRow), s.afterN(id, after), opts, func(doc bson.Raw) error {
		d, err := rowOf(doc)
		of := lane{d.Outbox, string(d.Lane.Data)}
		if err != nil || known[of] {
			return err
		}
		known[of] = true
		if began, err := s.laneBegan(ctx, on, id, &d, after); err != nil || began {
			return err
		}
		l := store.ReplayLane{LaneKey: store.LaneKey{Outbox: d.Outbox, Kind: d.Kind, Group: groupOf(d.Group)}}
		l.First, _ = d.Key.N.(int64)
		copy(l.Hash[:], d.Lane.Data)
		if lanes = append(lanes, l); len(lanes) == limit {
			return errStopIteration
		}
		return nil
	})
	if errors.Is(err, errStopIteration) {
		err = nil
	}

	return lanes, err
}

// laneBegan reports whether the row's lane also has rows up to n.
func (s *Store) laneBegan(ctx context.Context, on *conn, id string, d *rowDocument, n int64) (bool, error) {
	if n <= 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	err := on.ownCollection(ownReplayRow).FindOne(ctx, s.inLane(id, d.Outbox, d.Lane, bson.D{{Key: "$lte", Value: n}}), options.FindOne().SetProjection(project("_id"))).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}
