package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// Prune implements store.Pruner. It walks a collection by id, since most kinds of ids grow
// with time.
func (s *Store) Prune(ctx context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	o, err := s.outboxes.FindValid(p.Outbox, &p)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune: %w", err)
	}

	from, err := pruneFrom(p.From)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
	}

	var w walkResult
	err = s.read(ctx, func(ctx context.Context, on *conn) (err error) {
		w, err = on.table(o).walk(ctx, from, p)
		return err
	})
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune outbox %s: %w", p.Outbox, Explain(err))
	}

	n := int64(0)
	err = s.runJob(ctx, &writeJob{epoch: epoch, write: func(ctx context.Context, on *conn) (err error) {
		n, err = on.table(o).prune(ctx, on.archive(o.ArchiveTable()), w.old, p)
		return err
	}})
	if err == nil {
		return store.PruneResult{Rows: int(n), Next: w.next}, nil
	}

	err = asRefused(err)
	if !errors.As(err, new(*store.RefusedError)) {
		w.next = ""
	}

	return store.PruneResult{Next: w.next}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
}

// archive returns the collection of an archive, nil for none.
func (c *conn) archive(to *store.Outbox) *mongo.Collection {
	if to == nil {
		return nil
	}
	return c.table(to).collection
}

// archiveActions are the actions that the relay performs on an archive.
func archiveActions() []string { return []string{"find", "insert", "update"} }

// archives checks that documents can be moved into the outbox's archives.
func (c *checker) archives(ctx context.Context, o *store.Outbox) error {
	for _, to := range o.ArchiveTables() {
		if err := c.archive(ctx, to); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) archive(ctx context.Context, to *store.Outbox) error {
	a := c.conn.table(to)
	if c.reportMissingActions(a.collection.Database().Name(), to.Table, archiveActions()) {
		return nil
	}
	names, err := visible(ctx, a.collection.Database(), to.Table)
	if err == nil && len(names) == 0 {
		c.AddNoArchive(a.path(), strings.Replace(shellOf(to), "getCollection(", "createCollection(", 1)+";")
	}
	return err
}

// Clock implements store.Pruner.
func (s *Store) Clock(ctx context.Context) (now time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, on *conn) error {
		g, err := on.hello(ctx)
		now = g.Now
		return err
	})
	if err != nil {
		return now, fmt.Errorf("read server time: %w", Explain(err))
	}
	return now, nil
}

// pruneFrom parses a prune cursor, which is an id as extended JSON; nil is the beginning.
func pruneFrom(text string) (*bson.RawValue, error) {
	if text == "" {
		return nil, nil
	}
	var place struct {
		ID bson.RawValue `bson:"id"`
	}
	if err := bson.UnmarshalExtJSON([]byte(text), true, &place); err != nil || place.ID.Type == 0 {
		return nil, fmt.Errorf("invalid prune cursor %q", text)
	}
	return &place.ID, nil
}

// walkResult is the result of one walk.
type walkResult struct {
	old  []bson.RawValue // ids of the documents to delete
	next string
}

// walk reads documents in id order.
func (t *table) walk(ctx context.Context, from *bson.RawValue, p store.PruneRequest) (w walkResult, err error) {
	c := &t.Layout.Columns
	by := bson.D{{Key: t.id(), Value: 1}}
	opts := options.Find().SetSort(by).SetHint(by).SetLimit(int64(p.ScanRows() + 2)).
		SetProjection(project(c.ID, c.Status, c.Delivered, t.Layout.DeliveredTime()))
	if from != nil {
		opts.SetMin(bson.D{{Key: t.id(), Value: *from}}) // works for ids of mixed types
	}

	seen := 0
	var last bson.RawValue
	for doc, err := range find(ctx, commandTimeout, t.collection, bson.D{t.identified()}, opts) {
		if err != nil {
			return w, err
		}
		id := document.Lookup(doc, c.ID)
		if from != nil && seen == 0 && id.Equal(*from) {
			continue
		}
		if len(w.old) == p.Limit || seen == p.ScanRows() {
			text, err := bson.MarshalExtJSON(bson.D{{Key: "id", Value: last}}, true, false)
			w.next = strings.TrimSpace(string(text))
			return w, err
		}
		seen++
		last = bson.RawValue{Type: id.Type, Value: slices.Clone(id.Value)} // the document is valid only until the next
		at := document.Time(document.Lookup(doc, t.Layout.DeliveredTime()))
		if t.statusOf(doc) == store.Completed && !at.IsZero() && at.Before(p.Before) {
			w.old = append(w.old, last)
		}
	}
	return w, nil
}

// prune deletes the documents that are still old enough, in the call's transaction.
// An archive receives them first.
func (t *table) prune(ctx context.Context, archive *mongo.Collection, old []bson.RawValue, p store.PruneRequest) (int64, error) {
	if len(old) == 0 {
		return 0, nil
	}
	filter := append(bson.D{{Key: t.id(), Value: bson.D{{Key: "$in", Value: old}}}}, t.delivered()...)
	filter = bson.D{{Key: "$and", Value: bson.A{filter, bson.D{t.before(t.Layout.DeliveredTime(), p.Before)}}}}
	if t.Archive == "" {
		return remove(ctx, t.collection, filter)
	}
	copied, err := t.copyIntoArchive(ctx, archive, filter)
	if err != nil || len(copied) == 0 {
		return 0, err
	}
	return remove(ctx, t.collection, bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: copied}}}}, filter}}})
}

// maxCopyBytes is how many bytes of documents are copied into an archive at once.
const maxCopyBytes = 8 << 20

// copyIntoArchive copies documents into the archive and returns their _ids. It replaces a
// document of the same _id, because without transactions a copy may be there already.
func (t *table) copyIntoArchive(ctx context.Context, archive *mongo.Collection, filter any) (copied []bson.RawValue, err error) {
	var models []mongo.WriteModel
	size := 0
	flush := func() error {
		if len(models) == 0 {
			return nil
		}
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		_, err := archive.BulkWrite(bound, models)
		models, size = nil, 0
		return err
	}
	for doc, err := range find(ctx, commandTimeout, t.collection, filter, options.Find()) {
		if err != nil {
			return nil, err
		}
		doc = slices.Clone(doc) // it is valid only until the next
		id := doc.Lookup("_id")
		copied = append(copied, id)
		models = append(models, mongo.NewReplaceOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).SetReplacement(doc).SetUpsert(true))
		if size += len(doc); size >= maxCopyBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return copied, flush()
}
