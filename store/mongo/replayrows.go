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

// rowDocument is a row in sluicebox_replay_row.
type rowDocument struct {
	Key         rowKey         `bson:"_id"`
	Outbox      string         `bson:"outbox"`
	Lane        bson.Binary    `bson:"lane"`
	ID          string         `bson:"id"`
	Kind        string         `bson:"kind"`
	Group       *string        `bson:"group"`
	PayloadSize int64          `bson:"payloadSize"`
	Committed   *bson.DateTime `bson:"committedAt"`
	Payload     *bson.Binary   `bson:"payload"`
}

// row returns the row as it was copied.
func (d *rowDocument) row() store.ReplayRow {
	r := store.ReplayRow{Item: store.Item{
		Ref: store.Ref{Outbox: d.Outbox, ID: d.ID}, Kind: d.Kind, Group: groupOf(d.Group), PayloadSize: int(d.PayloadSize), Committed: timeOrZero(d.Committed),
	}}
	r.N, _ = d.Key.N.(int64)
	if d.Payload != nil {
		r.Payload = append([]byte{}, d.Payload.Data...)
	}
	return r
}

func rowOf(doc bson.Raw) (d rowDocument, err error) {
	if err = bson.Unmarshal(doc, &d); err != nil {
		err = fmt.Errorf("in %s: %w", ownReplayRow, err)
	}
	return d, err
}

// CopyRows implements store.ReplayWriter. Commit times are truncated to milliseconds. A
// payload above 15 MiB does not fit into a document and is not kept. The replay's document
// is written first, so that a concurrent change of it waits and does not abort this
// transaction.
func (s *Store) CopyRows(ctx context.Context, epoch store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	err := replays.CheckRows(s.outboxes, rows)
	if err == nil {
		err = s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
			previous, err := s.count(ctx, on, id, bson.D{
				{Key: "$set", Value: bson.D{{Key: "cursorPosition", Value: string(at.Position)}, {Key: "cursorSkip", Value: int64(at.Skip)}}},
				{Key: "$inc", Value: bson.D{{Key: "total", Value: int64(len(rows))}}},
			})
			if err == nil && previous == nil {
				return store.ErrNoJob
			}
			if err != nil {
				return err
			}
			copied, err := s.copyRows(ctx, on, id, rows)
			if known := len(rows) - copied; err == nil && known > 0 {
				_, err = s.count(ctx, on, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "total", Value: -int64(known)}}}})
			}
			return err
		})
	}

	if err != nil {
		return fmt.Errorf("copy rows for replay %s: %w", id, Explain(err))
	}

	return nil
}

// copyRows adds rows to a replay, in the call's transaction, and returns how many were new.
func (s *Store) copyRows(ctx context.Context, on *conn, id string, rows []store.ReplayRow) (int, error) {
	in := on.ownCollection(ownReplayRow)
	numbers := make([]int64, len(rows))
	for i := range rows {
		numbers[i] = rows[i].N
	}

	existing := map[int64]bool{}
	err := forEach(ctx, commandTimeout, in, s.numbered(id, numbers), options.Find().SetProjection(project("_id")), func(doc bson.Raw) error {
		n, _ := doc.Lookup("_id", "n").AsInt64OK()
		existing[n] = true
		return nil
	})

	var docs []rowDocument
	for i := range rows {
		if r := &rows[i]; !existing[r.N] {
			existing[r.N] = true // the call may contain it twice
			docs = append(docs, s.copied(id, r))
		}
	}

	if err != nil || len(docs) == 0 {
		return 0, err
	}

	bound, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err = in.InsertMany(bound, docs)
	return len(docs), err
}

func (s *Store) copied(id string, r *store.ReplayRow) rowDocument {
	d := rowDocument{
		Key: rowKey{s.name, id, r.N}, Outbox: r.Outbox, Lane: hashOf(r.Lane().Hash()), ID: r.ID, Kind: r.Kind, Group: groupText(r.Group),
		PayloadSize: int64(r.PayloadSize), Committed: timeOrNull(r.Committed),
	}
	if r.Payload != nil && len(r.Payload) <= maxSpilledPayload {
		d.Payload = &bson.Binary{Data: r.Payload}
	}
	return d
}

// numbered is the filter for documents of a replay by n.
func (s *Store) numbered(id string, numbers []int64) bson.D {
	keys := make([]rowKey, len(numbers))
	for i, n := range numbers {
		keys[i] = rowKey{s.name, id, n}
	}
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}}
}

// ClearRows implements store.ReplayWriter.
func (s *Store) ClearRows(ctx context.Context, epoch store.Epoch, id string, limit int) (int, error) {
	err := replays.CheckLimit(limit)
	cleared := 0
	if err == nil {
		err = s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
			if cleared, err = s.clear(ctx, on.ownCollection(ownReplayRow), id, limit); err != nil || cleared == 0 {
				return err
			}
			_, err = s.count(ctx, on, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "total", Value: -int64(cleared)}}}})
			return err
		})
	}

	if err != nil {
		return 0, fmt.Errorf("clear rows of replay %s: %w", id, Explain(err))
	}
	return cleared, nil
}

// clear deletes documents of a replay in ascending n, in the call's transaction, and
// returns how many.
func (s *Store) clear(ctx context.Context, in *mongo.Collection, id string, limit int) (int, error) {
	var numbers []int64
	opts := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit)).SetProjection(project("_id"))
	err := forEach(ctx, commandTimeout, in, s.afterN(id, 0), opts, func(doc bson.Raw) error {
		n, _ := doc.Lookup("_id", "n").AsInt64OK()
		numbers = append(numbers, n)
		return nil
	})
	if err != nil || len(numbers) == 0 {
		return 0, err
	}

	_, err = remove(ctx, in, s.numbered(id, numbers))
	return len(numbers), err
}

// count changes a replay, in the call's transaction, and returns its previous state; nil if
// there is none.
func (s *Store) count(ctx context.Context, on *conn, id string, change bson.D) (*jobDocument, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var d jobDocument
	opts := options.FindOneAndUpdate().SetProjection(bson.D{{Key: "spec", Value: 0}})
	err := on.ownCollection(ownReplay).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: jobKey{s.name, id}}}, change, opts).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return &d, err
}

// FinishRows implements store.ReplayFinisher. It shares no transaction with claims: small
// claims use none, and would have to wait for it.
func (s *Store) FinishRows(ctx context.Context, epoch store.Epoch, id string, done []store.FinishedRow) error {
	if len(done) == 0 {
		return nil
	}
	err := replays.CheckFinished(done)
	if err == nil {
		err = s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error { return s.finishRows(ctx, on, id, done) })
	}
	if err != nil {
		return fmt.Errorf("record replay %s results: %w", id, Explain(err))
	}
	return nil
}

// finishRows removes rows from a replay, in the call's transaction. It counts all of them
// first, as CopyRows does, and then subtracts the rows it did not find.
func (s *Store) finishRows(ctx context.Context, on *conn, id string, done []store.FinishedRow) error {
	var all, tally replays.Tally
	for i := range done {
		all.Count(done[i].Result)
	}

	job, err := s.count(ctx, on, id, countUpdate(all, 1))
	if err == nil && job == nil {
		return store.ErrNoJob
	}

	if err != nil {
		return err
	}

	found, err := s.rowsOf(ctx, on, id, done)
	if err != nil {
		return err
	}

	var finished []int64
	var refused []errorDocument
	for i := range done {
		of := &done[i]
		row, ok := found[of.N]
		if !ok || row.Outbox != of.Lane.Outbox || string(row.Lane.Data) != string(hashOf(of.Lane.Hash()).Data) {
			continue
		}
		delete(found, of.N)
		finished = append(finished, of.N)
		if tally.Count(of.Result); of.Result == store.ReplayRefused && tally.StoresError(job.Refused) {
			refused = append(refused, errorDocument{
				Key: rowKey{s.name, id, of.N}, Outbox: row.Outbox, ID: row.ID, Kind: row.Kind, Group: row.Group, Reason: errortext.Sanitize(of.Error, 0, false), At: row.now,
			})
		}
	}

	if len(finished) > 0 {
		_, err = remove(ctx, on.ownCollection(ownReplayRow), s.numbered(id, finished))
	}

	if err == nil {
		err = s.saveErrors(ctx, on, id, refused)
	}

	if err == nil && len(finished) < len(done) {
		_, err = s.count(ctx, on, id, countUpdate(replays.Tally{Sent: all.Sent - tally.Sent, Skipped: all.Skipped - tally.Skipped, Refused: all.Refused - tally.Refused}, -1))
	}

	return err
}

// countUpdate is the update that adds rows to the counts of a replay, or subtracts them.
func countUpdate(t replays.Tally, sign int64) bson.D {
	return bson.D{{Key: "$inc", Value: bson.D{{Key: "sent", Value: sign * t.Sent}, {Key: "skipped", Value: sign * t.Skipped}, {Key: "refused", Value: sign * t.Refused}}}}
}

// finishedRow is a row to remove, with the server's time.
type finishedRow struct {
	rowDocument
	now bson.DateTime
}

// rowsOf reads the rows to remove by n, without their payloads.
func (s *Store) rowsOf(ctx context.Context, on *conn, id string, done []store.FinishedRow) (map[int64]finishedRow, error) {
	numbers := make([]int64, len(done))
	for i := range done {
		numbers[i] = done[i].N
	}

	found := map[int64]finishedRow{}
	fields := append(project("_id", "outbox", "lane", "id", "kind", "group"), bson.E{Key: nowField, Value: "$$NOW"})
	err := forEach(ctx, commandTimeout, on.ownCollection(ownReplayRow), s.numbered(id, numbers), options.Find().SetProjection(fields), func(doc bson.Raw) error {
		d, err := rowOf(doc)
		n, _ := d.Key.N.(int64)
		found[n] = finishedRow{d, bson.NewDateTimeFromTime(doc.Lookup(nowField).Time())}
		return err
	})
	return found, err
}

// saveErrors stores the errors of refused rows, in the call's transaction. It replaces
// errors that rows with the same n left before they were cleared.
func (s *Store) saveErrors(ctx context.Context, on *conn, id string, errs []errorDocument) error {
	if len(errs) == 0 {
		return nil
	}

	numbers := make([]int64, len(errs))
	for i := range errs {
		numbers[i], _ = errs[i].Key.N.(int64)
	}

	if _, err := remove(ctx, on.ownCollection(ownReplayErr), s.numbered(id, numbers)); err != nil {
		return err
	}

	bound, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := on.ownCollection(ownReplayErr).InsertMany(bound, errs)
	return err
}
