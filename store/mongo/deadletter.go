package mongo

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
func (s *Store) CountFailed(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	n := 0
	err := s.letters(ctx, f, func(ctx context.Context, l *letters) error {
		l.fields = project(l.table.id(), l.c.Kind, l.c.Group, l.c.Error, l.table.Layout.FailedTime())
		return l.each(ctx, 0, func(bson.Raw, string) error { n++; return nil })
	})
	if err != nil {
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
	if err := s.eachFailed(ctx, f, 0, false, take); err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	return nil
}

func (s *Store) failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) (found []store.DeadLetter, err error) {
	if limit <= 0 {
		return nil, fmt.Errorf("outbox %s: limit %d must be positive", f.Outbox, limit)
	}
	err = s.eachFailed(ctx, f, limit, payload, func(d *store.DeadLetter) { found = append(found, *d) })
	return found, err
}

// eachFailed passes the matching documents to take in order, at most limit unless that is
// 0.
func (s *Store) eachFailed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool, take func(*store.DeadLetter)) error {
	return s.letters(ctx, f, func(ctx context.Context, l *letters) error {
		fields := []string{l.c.ID, l.c.Kind, l.c.Group, l.c.RetryCount, l.c.Error, l.table.Layout.FailedTime()}
		if payload {
			l.fields = project(append(fields, l.c.Payload)...)
		} else {
			l.fields = append(project(fields...), bson.E{Key: sizeField, Value: l.table.size()})
		}
		return l.each(ctx, limit, func(doc bson.Raw, id string) error {
			d := l.letter(doc, id, payload)
			take(&d)
			return nil
		})
	})
}

// letters is one read of FAILED documents.
type letters struct {
	table  *table
	c      *store.Columns
	filter *store.DeadLetterFilter
	reader *document.Reader
	fields bson.D
}

// letters runs read in a session of its own, independently of the relay's writes.
func (s *Store) letters(ctx context.Context, f store.DeadLetterFilter, read func(context.Context, *letters) error) error {
	o, err := s.outboxes.FindValid(f.Outbox, &f)
	if err != nil {
		return err
	}
	return Explain(s.read(ctx, func(ctx context.Context, on *conn) error {
		return read(ctx, &letters{table: on.table(o), c: &o.Layout.Columns, filter: &f, reader: document.New(o)})
	}))
}

// each passes the matching documents with their ids to give, in order, at most limit unless
// that is 0. The server filters by state and id. The program filters by kind, group, error
// and time, comparing bytes.
func (l *letters) each(ctx context.Context, limit int, give func(doc bson.Raw, id string) error) error {
	filter := append(bson.D{l.table.identified()}, l.table.failed()...)
	if len(l.filter.IDs) > 0 {
		filter = bson.D{{Key: "$and", Value: bson.A{filter, bson.D{l.table.idIn(l.filter.IDs)}}}}
	}

	opts := options.Find().SetSort(l.table.order()).SetProjection(l.fields).SetAllowDiskUse(true)
	f := l.filter
	if f.Kind == "" && f.Group == nil && f.Error == "" && f.Since.IsZero() && f.Until.IsZero() {
		opts.SetLimit(int64(limit))
	}

	n := 0
	err := forEach(ctx, viewTimeout, l.table.collection, filter, opts, func(doc bson.Raw) error {
		id, err := document.ID(document.Lookup(doc, l.c.ID))
		if err != nil || !l.chosen(doc) {
			return nil
		}
		if err := give(doc, id); err != nil {
			return err
		}
		if n++; n == limit {
			return errStopIteration
		}
		return nil
	})
	if errors.Is(err, errStopIteration) {
		return nil
	}

	return err
}

// chosen reports whether a FAILED document matches the filter.
func (l *letters) chosen(doc bson.Raw) bool {
	f, lane := l.filter, l.reader.Lane(doc)
	if f.Kind != "" && lane.Kind != f.Kind || f.Group != nil && lane.Group != *f.Group {
		return false
	}

	if f.Error != "" && !strings.Contains(l.text(doc), f.Error) {
		return false
	}

	if f.Since.IsZero() && f.Until.IsZero() {
		return true
	}

	at := document.Time(document.Lookup(doc, l.table.Layout.FailedTime()))
	return !at.IsZero() && (f.Since.IsZero() || !at.Before(f.Since)) && (f.Until.IsZero() || at.Before(f.Until))
}

// text returns the error text of a document.
func (l *letters) text(doc bson.Raw) string {
	if l.c.Error == "" {
		return ""
	}
	return string(document.AppendText(nil, document.Lookup(doc, l.c.Error)))
}

func (l *letters) letter(doc bson.Raw, id string, payload bool) store.DeadLetter {
	lane := l.reader.Lane(doc)
	d := store.DeadLetter{Ref: store.Ref{Outbox: l.table.Name, ID: id}, Kind: lane.Kind, Group: lane.Group, Error: l.text(doc)}
	if l.c.RetryCount != "" {
		d.RetryCount = document.Count(document.Lookup(doc, l.c.RetryCount))
	}

	if name := l.table.Layout.FailedTime(); name != "" {
		d.FailedAt = document.Time(document.Lookup(doc, name))
	}

	if payload {
		d.Payload = document.Payload(document.Lookup(doc, l.c.Payload))
		d.PayloadSize = len(d.Payload)
		return d
	}

	size, _ := doc.Lookup(sizeField).AsInt64OK()
	d.PayloadSize = int(size)
	return d
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
	return store.RequeuedItems(done, time.Now()), nil
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
	return t.update(ctx, filter, set(columns.Requeue(&t.Layout, nullable), func(columns.Value) any { return t.status(store.Pending) }))
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
				return s.tx(on).run(ctx, func(ctx context.Context, tx ledger.Tx) error { return ledger.Unblock(ctx, tx, store.Refs(done)...) })
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
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].ID
	}

	failed, err := t.failedAmong(ctx, ids)
	if err != nil || len(failed) == 0 {
		return nil, err
	}

	ids = ids[:0]
	for i := range letters {
		if failed[letters[i].ID] {
			done = append(done, letters[i])
			ids = append(ids, letters[i].ID)
		}
	}

	n, err := m.apply(ctx, t, append(bson.D{t.idIn(ids)}, t.failed()...))
	switch {
	case err != nil:
		return nil, err
	case n != int64(len(ids)):
		return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: %d FAILED documents share an id of another type, or changed meanwhile; give them distinct ids", t.Name, n-int64(len(ids)))}
	}

	return done, nil
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
		if s.outboxes.Lookup(row.Outbox).Layout.State != store.StateNone && !known[row] {
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
	failed := map[string]bool{}
	if len(ids) == 0 {
		return failed, nil
	}

	filter := append(bson.D{t.idIn(ids)}, t.failed()...)
	err := forEach(ctx, commandTimeout, t.collection, filter, options.Find().SetProjection(project(t.id())), func(doc bson.Raw) error {
		if id, err := document.ID(document.Lookup(doc, t.id())); err == nil {
			failed[id] = true
		}
		return nil
	})
	return failed, err
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
