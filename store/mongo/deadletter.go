package mongo

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// letters implements deadletter.Database. The server selects documents by state and id. The
// program selects them by kind, group, error and time, comparing bytes.
type letters struct{ *Store }

// CountLetters implements deadletter.Database.
func (l letters) CountLetters(ctx context.Context, r *deadletter.Read) (n int, err error) {
	count := *r
	count.Begin, count.Take = func() { n = 0 }, func(*store.DeadLetter) { n++ }
	return n, l.each(ctx, &count, payloadOmitted)
}

// EachLetter implements deadletter.Database.
func (l letters) EachLetter(ctx context.Context, r *deadletter.Read) error {
	if r.Payload {
		return l.each(ctx, r, payloadRead)
	}
	return l.each(ctx, r, payloadMeasured)
}

// payloadUse says what is read of the payloads of FAILED documents.
type payloadUse uint8

const (
	payloadOmitted payloadUse = iota
	payloadMeasured
	payloadRead
)

// each passes the selected documents to r.Take. It reads in a session of its own,
// independently of the relay's writes.
func (l letters) each(ctx context.Context, r *deadletter.Read, payload payloadUse) error {
	if len(r.Filter.IDs) == 0 && !r.Outbox.Layout.Stores(store.Failed) {
		return nil // the server would read the whole collection
	}
	return Explain(l.read(ctx, func(ctx context.Context, on *conn) error {
		r.Begin()
		return on.table(r.Outbox).eachLetter(ctx, r, payload)
	}))
}

func (t *table) eachLetter(ctx context.Context, r *deadletter.Read, payload payloadUse) error {
	f := r.Filter
	filter := append(bson.D{t.identified()}, t.deadLetter(len(f.IDs) > 0)...)
	if len(f.IDs) > 0 {
		filter = bson.D{{Key: "$and", Value: bson.A{filter, bson.D{t.idIn(f.IDs)}}}}
	}

	opts := options.Find().SetSort(t.order()).SetProjection(t.letterFields(payload)).SetAllowDiskUse(true)
	if f.Kind == "" && f.Group == nil && f.Error == "" && f.Since.IsZero() && f.Until.IsZero() {
		opts.SetLimit(int64(r.Limit))
	}

	n := 0
	for doc, err := range find(ctx, viewTimeout, t.collection, filter, opts) {
		if err != nil {
			return err
		}
		it, err := t.reader.Head(doc)
		if err != nil {
			continue // no text matches such an id
		}
		d := t.letter(doc, &it)
		if !f.Matches(&d) {
			continue
		}
		if d.PayloadSize = sizeOf(doc); payload == payloadRead {
			d.Payload, _ = t.content(doc)
			d.PayloadSize = len(d.Payload)
		}
		r.Take(&d)
		if n++; n == r.Limit {
			break
		}
	}
	return nil
}

// letterFields is the projection of FAILED documents.
func (t *table) letterFields(payload payloadUse) bson.D {
	c := &t.Layout.Columns
	fields := append(t.rowFields(), c.Error, t.Layout.FailedTime())
	switch payload {
	case payloadRead:
		return project(append(fields, c.Payload)...)
	case payloadMeasured:
		return append(project(fields...), bson.E{Key: sizeField, Value: t.size()})
	}
	return project(fields...)
}

// letter returns a FAILED document, whose head was read, without its payload.
func (t *table) letter(doc bson.Raw, it *store.Item) store.DeadLetter {
	it.Attributes = t.reader.KindAttributes(doc)
	d := store.DeadLetter{Ref: it.Ref, Kind: it.OwnKind(), Group: it.Group, RetryCount: it.RetryCount}
	if name := t.Layout.Columns.Error; name != "" {
		d.Error = string(document.AppendText(nil, document.Lookup(doc, name)))
	}
	if name := t.Layout.FailedTime(); name != "" {
		d.FailedAt = document.Time(document.Lookup(doc, name))
	}
	return d
}

// ResolveLetters implements deadletter.Database.
func (l letters) ResolveLetters(ctx context.Context, epoch store.Epoch, o *store.Outbox, a deadletter.Action, all []store.DeadLetter) (done []store.DeadLetter, err error) {
	err = l.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
		if done, err = on.table(o).resolve(ctx, a, on.archive(o.FailedArchiveTable()), all); err != nil || len(done) == 0 {
			return err
		}
		return l.tx(on).run(ctx, func(ctx context.Context, tx ledger.Tx) error { return l.AfterResolve(ctx, tx, store.Refs(done)...) })
	})
	if err != nil {
		return nil, explainResolve(err, a, o)
	}
	return done, nil
}

// resolve applies an action to the documents that are still FAILED, in the call's
// transaction. It returns those documents in order. If keep is not nil, it receives the documents
// that a discard deletes.
func (t *table) resolve(ctx context.Context, a deadletter.Action, keep *mongo.Collection, all []store.DeadLetter) (done []store.DeadLetter, err error) {
	failed, err := t.among(ctx, idsOfLetters(all), t.deadLetter(true))
	if err != nil || len(failed) == 0 {
		return nil, err
	}
	done = slices.DeleteFunc(slices.Clone(all), func(d store.DeadLetter) bool { return !failed[d.ID] })

	those := append(bson.D{t.idIn(idsOfLetters(done))}, t.deadLetter(true)...)
	if keep != nil && a == deadletter.Discard {
		if _, err := t.copyIntoArchive(ctx, keep, those); err != nil {
			return nil, err
		}
	}
	n, err := t.write(ctx, a, those)
	switch {
	case err != nil:
		return nil, err
	case n != int64(len(done)):
		return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: %d FAILED documents share an id of another type, or changed meanwhile; give them distinct ids", t.Name, n-int64(len(done)))}
	}

	return done, nil
}

// write discards or requeues the documents of a filter, and returns how many matched. A
// requeue sets the times of claim and settlement to null where they are part of the state.
func (t *table) write(ctx context.Context, a deadletter.Action, filter bson.D) (int64, error) {
	if a == deadletter.Discard {
		return remove(ctx, t.collection, filter)
	}
	return update(ctx, t.collection, filter, set(columns.Requeue(&t.Layout, nil), func(columns.Assignment) any { return t.status(store.Pending) }))
}

func idsOfLetters(letters []store.DeadLetter) []string {
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].ID
	}
	return ids
}

// areFailed is a ledger.AreFailed in a session of its own.
func (s *Store) areFailed(ctx context.Context, rows []store.Ref) (failed []bool, err error) {
	err = s.read(ctx, func(ctx context.Context, on *conn) (err error) {
		failed, err = s.readFailed(ctx, on, rows, nil)
		return err
	})
	return failed, Explain(err)
}

// readFailed reports which rows are FAILED, without a read if they are among known.
func (s *Store) readFailed(ctx context.Context, on *conn, rows []store.Ref, known map[store.Ref]bool) ([]bool, error) {
	ids := map[string][]string{}
	for _, row := range rows {
		if l := &s.outboxes.Lookup(row.Outbox).Layout; l.Stores(store.Failed) && !known[row] {
			ids[row.Outbox] = append(ids[row.Outbox], row.ID)
		}
	}

	among := map[string]map[string]bool{}
	for outbox, list := range ids {
		var err error
		if among[outbox], err = on.table(s.outboxes.Lookup(outbox)).failedAmong(ctx, list); err != nil {
			return nil, err
		}
	}

	failed := make([]bool, len(rows))
	for i, row := range rows {
		failed[i] = known[row] || among[row.Outbox][row.ID]
	}
	return failed, nil
}

// failedAmong returns the ids whose documents are FAILED.
func (t *table) failedAmong(ctx context.Context, ids []string) (map[string]bool, error) {
	return t.among(ctx, ids, t.failed())
}

// among returns the ids of documents in a state.
func (t *table) among(ctx context.Context, ids []string, state bson.D) (map[string]bool, error) {
	found := map[string]bool{}
	err := t.eachOf(ctx, ids, project(t.id()), func(id string, _ bson.Raw) error {
		found[id] = true
		return nil
	}, state...)
	return found, err
}

// explainResolve names the privilege that the user may lack: a relay whose layout deletes
// nothing works without remove until an operator discards a document.
func explainResolve(err error, a deadletter.Action, o *store.Outbox) error {
	if !hasCode(err, codeUnauthorized) {
		return asRefused(err)
	}
	right := "update"
	if a == deadletter.Discard {
		right = "remove"
	}
	return &store.SetupError{
		Problem: fmt.Sprintf("outbox %s: %s", o.Name, shortErrorText(err)),
		Remedy:  fmt.Sprintf("grant the relay's user the action %s on %s", right, o.Table),
	}
}
