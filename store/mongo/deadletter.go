package mongo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// CountFailed implements store.DeadLetters.
func (s *Store) CountFailed(ctx context.Context, f store.DeadLetterFilter) (n int, err error) {
	if err = s.eachFailed(ctx, f, 0, payloadOmitted, func(*store.DeadLetter) { n++ }); err != nil {
		return 0, fmt.Errorf("count FAILED rows: %w", err)
	}
	return n, nil
}

// Failed implements store.DeadLetters.
func (s *Store) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	found, err := s.failed(ctx, f, limit, payload)
	if err != nil {
		return nil, fmt.Errorf("read FAILED rows: %w", err)
	}
	return found, nil
}

// EachFailed implements store.FailedReader.
func (s *Store) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	if err := s.eachFailed(ctx, f, 0, payloadMeasured, take); err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	return nil
}

func (s *Store) failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) (found []store.DeadLetter, err error) {
	if limit <= 0 {
		return nil, fmt.Errorf("outbox %s: limit %d must be positive", f.Outbox, limit)
	}
	how := payloadMeasured
	if payload {
		how = payloadRead
	}
	err = s.eachFailed(ctx, f, limit, how, func(d *store.DeadLetter) { found = append(found, *d) })
	return found, err
}

// payloadUse says what is read of the payloads of FAILED documents.
type payloadUse uint8

const (
	payloadOmitted payloadUse = iota
	payloadMeasured
	payloadRead
)

// letters is one read of FAILED documents.
type letters struct {
	table   *table
	filter  *store.DeadLetterFilter
	payload payloadUse
}

// eachFailed passes the matching documents to take in order, at most limit unless that is
// 0. It reads in a session of its own, independently of the relay's writes.
func (s *Store) eachFailed(ctx context.Context, f store.DeadLetterFilter, limit int, payload payloadUse, take func(*store.DeadLetter)) error {
	o, err := s.outboxes.FindValid(f.Outbox, &f)
	if err != nil {
		return err
	}
	return Explain(s.read(ctx, func(ctx context.Context, on *conn) error {
		l := &letters{on.table(o), &f, payload}
		return l.each(ctx, limit, take)
	}))
}

// each passes the matching documents to take. The server filters by state and id. The
// program filters by kind, group, error and time, comparing bytes.
func (l *letters) each(ctx context.Context, limit int, take func(*store.DeadLetter)) error {
	f, t := l.filter, l.table
	if len(f.IDs) == 0 && !t.Layout.Stores(store.Failed) {
		return nil // the server would read the whole collection
	}
	filter := append(bson.D{t.identified()}, t.deadLetter(len(f.IDs) > 0)...)
	if len(f.IDs) > 0 {
		filter = bson.D{{Key: "$and", Value: bson.A{filter, bson.D{t.idIn(f.IDs)}}}}
	}

	opts := options.Find().SetSort(t.order()).SetProjection(l.projection()).SetAllowDiskUse(true)
	if f.Kind == "" && f.Group == nil && f.Error == "" && f.Since.IsZero() && f.Until.IsZero() {
		opts.SetLimit(int64(limit))
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
		d := l.letter(doc, &it)
		if !f.Matches(&d) {
			continue
		}
		l.addPayload(doc, &d)
		take(&d)
		if n++; n == limit {
			break
		}
	}
	return nil
}

func (l *letters) projection() bson.D {
	c := &l.table.Layout.Columns
	fields := append(l.table.rowFields(), c.Error, l.table.Layout.FailedTime())
	switch l.payload {
	case payloadRead:
		return project(append(fields, c.Payload)...)
	case payloadMeasured:
		return append(project(fields...), bson.E{Key: sizeField, Value: l.table.size()})
	}
	return project(fields...)
}

// letter returns a FAILED document, whose head was read, without its payload.
func (l *letters) letter(doc bson.Raw, it *store.Item) store.DeadLetter {
	it.Attributes = l.table.reader.KindAttributes(doc)
	d := store.DeadLetter{Ref: it.Ref, Kind: it.OwnKind(), Group: it.Group, RetryCount: it.RetryCount}
	if name := l.table.Layout.Columns.Error; name != "" {
		d.Error = string(document.AppendText(nil, document.Lookup(doc, name)))
	}
	if name := l.table.Layout.FailedTime(); name != "" {
		d.FailedAt = document.Time(document.Lookup(doc, name))
	}
	return d
}

func (l *letters) addPayload(doc bson.Raw, d *store.DeadLetter) {
	d.PayloadSize = sizeOf(doc)
	if l.payload == payloadRead {
		d.Payload, _ = l.table.content(doc)
		d.PayloadSize = len(d.Payload)
	}
}

// resolveAction is an operation on FAILED documents. apply returns how many documents it
// matched.
type resolveAction struct {
	apply func(ctx context.Context, t *table, filter bson.D) (int64, error)
	right string // action that the user needs
}

// Requeue implements store.DeadLetters. Claim and settlement times become null where they
// are part of the state; otherwise they stay, as on a retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	done, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeue, "update"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(s.outboxes.Lookup(f.Outbox), done, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	discard := func(ctx context.Context, t *table, filter bson.D) (int64, error) {
		return remove(ctx, t.collection, filter)
	}
	done, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{discard, "remove"})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(done), nil
}

func requeue(ctx context.Context, t *table, filter bson.D) (int64, error) {
	nullable := func(string) bool { return false }
	return update(ctx, t.collection, filter, set(columns.Requeue(&t.Layout, nullable), func(columns.Value) any { return t.status(store.Pending) }))
}

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, m resolveAction) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.failed(ctx, f, limit, false) },
		func(letters []store.DeadLetter) (done []store.DeadLetter, err error) {
			o := s.outboxes.Lookup(f.Outbox)
			err = s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) (err error) {
				if done, err = s.resolveRows(ctx, on.table(o), letters, m); err != nil || len(done) == 0 {
					return err
				}
				return s.tx(on).run(ctx, func(ctx context.Context, tx ledger.Tx) error { return s.AfterResolve(ctx, tx, store.Refs(done)...) })
			})
			if err != nil {
				return nil, m.explain(err, o)
			}
			return done, nil
		})
}

// resolveRows applies the action to the documents that are still FAILED, in the call's
// transaction. It returns those documents in order.
func (s *Store) resolveRows(ctx context.Context, t *table, letters []store.DeadLetter, m resolveAction) (done []store.DeadLetter, err error) {
	failed, err := t.among(ctx, idsOfLetters(letters), t.deadLetter(true))
	if err != nil || len(failed) == 0 {
		return nil, err
	}
	done = slices.DeleteFunc(slices.Clone(letters), func(d store.DeadLetter) bool { return !failed[d.ID] })

	n, err := m.apply(ctx, t, append(bson.D{t.idIn(idsOfLetters(done))}, t.deadLetter(true)...))
	switch {
	case err != nil:
		return nil, err
	case n != int64(len(done)):
		return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: %d FAILED documents share an id of another type, or changed meanwhile; give them distinct ids", t.Name, n-int64(len(done)))}
	}

	return done, nil
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

// explain names the action that the user may lack: a relay whose layout deletes nothing
// works without remove until an operator discards a document.
func (m resolveAction) explain(err error, o *store.Outbox) error {
	if hasCode(err, codeUnauthorized) {
		return &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s", o.Name, shortErrorText(err)),
			Remedy:  fmt.Sprintf("grant the relay's user the action %s on %s", m.right, o.Table),
		}
	}
	return asRefused(err)
}
