package ledger

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// attemptKind is the kind of the records of failed attempts. The keys are those of FAILED rows.
const attemptKind = "attempts"

// failedAttempts is a store.FailedAttempts in a record.
type failedAttempts struct {
	Outbox text      `json:"outbox"`
	ID     text      `json:"id"`
	Total  int       `json:"total"`
	Latest []attempt `json:"latest"`
}

// attempt is a store.Attempt in a record.
type attempt struct {
	At    time.Time     `json:"at"`
	Took  time.Duration `json:"took"`
	Class string        `json:"class"`
	Error text          `json:"error,omitempty"`
}

func recordOfAttempts(f *store.FailedAttempts) *failedAttempts {
	rec := &failedAttempts{Outbox: text(f.Outbox), ID: text(f.ID), Total: f.Total, Latest: []attempt{}}
	for _, a := range f.Latest {
		rec.Latest = append(rec.Latest, attempt{utc(a.Started), a.Took, a.Class, reasonText(a.Error)})
	}
	return rec
}

func (r *failedAttempts) value() *store.FailedAttempts {
	f := &store.FailedAttempts{Ref: store.Ref{Outbox: string(r.Outbox), ID: string(r.ID)}, Total: r.Total}
	for _, a := range r.Latest {
		f.Latest = append(f.Latest, store.Attempt{Started: a.At, Took: a.Took, Class: a.Class, Error: string(a.Error)})
	}
	return f
}

// attempts are the failed attempts of rows.
type attempts struct{ records Backend }

// SaveAttempts implements store.AttemptLog.
func (l attempts) SaveAttempts(ctx context.Context, epoch store.Epoch, save []store.FailedAttempts, drop []store.Ref) error {
	records := map[string]*failedAttempts{}
	for i := range save {
		records[failedKey(save[i].Ref)] = recordOfAttempts(&save[i])
	}
	keys := make([]string, len(drop))
	for i, row := range drop {
		keys[i] = failedKey(row)
	}
	err := l.records.Update(ctx, epoch, Normal, func(ctx context.Context, tx Tx) error {
		if len(keys) > 0 {
			if err := tx.Delete(ctx, attemptKind, keys...); err != nil {
				return err
			}
		}
		return putAll(ctx, tx, attemptKind, records)
	})
	return wrap(err, "save attempts of %d rows", len(save)+len(drop))
}

// LoadAttempts implements store.AttemptLog.
func (l attempts) LoadAttempts(ctx context.Context) (all []store.FailedAttempts, err error) {
	err = l.records.View(ctx, func(ctx context.Context, r Reader) error {
		all = nil
		records, err := list[failedAttempts](ctx, r, attemptKind)
		for _, rec := range records {
			all = append(all, *rec.value())
		}
		return err
	})
	return all, wrap(err, "load attempts")
}

// ReadAttempts implements store.AttemptLog.
func (l attempts) ReadAttempts(ctx context.Context, row store.Ref) (*store.FailedAttempts, error) {
	var found *failedAttempts
	err := l.records.View(ctx, func(ctx context.Context, r Reader) (err error) {
		found, err = get[failedAttempts](ctx, r.Get, attemptKind, failedKey(row))
		return err
	})
	if err != nil || found == nil {
		return nil, wrap(err, "read attempts of row %q of %s", row.ID, row.Outbox)
	}
	return found.value(), nil
}
