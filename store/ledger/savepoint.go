package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
)

// Kinds of the records of named checkpoints. The key is the name.
const (
	savepointSpecKind = "savepoint-spec"
	savepointKind     = "savepoint"
)

// savepointSpec is the request for a named checkpoint.
type savepointSpec struct {
	Name      text `json:"name"`
	RetainLog bool `json:"retainLog,omitempty"`
	Delete    bool `json:"delete,omitempty"`
}

// savepoint is what the leader made of the request. It is missing until then.
type savepoint struct {
	State         store.SavepointState `json:"state"`
	Checkpoint    checkpoint           `json:"checkpoint"`
	At            time.Time            `json:"at,omitzero"`
	Reason        text                 `json:"reason,omitempty"`
	RetainedBytes int64                `json:"retainedBytes,omitempty"`
}

// RequestSavepoint implements store.Requester.
func (l *Ledger) RequestSavepoint(ctx context.Context, name string, keep bool) error {
	err := store.ValidateSavepointName(name)
	if err == nil {
		err = l.records.Request(ctx, func(ctx context.Context, tx Tx, _ int64) error {
			spec, err := get[savepointSpec](ctx, tx.Lock, savepointSpecKind, keyOf(name))
			if err == nil && spec != nil {
				err = store.ErrSavepointExists
			}
			if err == nil { // without its request, what the leader made is of an earlier one
				err = tx.Delete(ctx, savepointKind, keyOf(name))
			}
			if err != nil {
				return err
			}
			return put(ctx, tx, savepointSpecKind, keyOf(name), savepointSpec{Name: text(name), RetainLog: keep})
		})
	}
	return wrap(err, "request checkpoint %s", name)
}

// RequestSavepointDeletion implements store.Requester.
func (l *Ledger) RequestSavepointDeletion(ctx context.Context, name string) error {
	err := l.records.Request(ctx, func(ctx context.Context, tx Tx, _ int64) error {
		spec, err := getSavepoint(ctx, tx, name)
		if err != nil {
			return err
		}
		spec.Delete = true
		return put(ctx, tx, savepointSpecKind, keyOf(name), spec)
	})
	return wrap(err, "request deletion of checkpoint %s", name)
}

// getSavepoint returns the request for a named checkpoint and locks its record.
func getSavepoint(ctx context.Context, tx Tx, name string) (*savepointSpec, error) {
	spec, err := get[savepointSpec](ctx, tx.Lock, savepointSpecKind, keyOf(name))
	if err == nil && spec == nil {
		err = store.ErrNoSavepoint
	}
	return spec, err
}

// Savepoints implements store.ReplayLister.
func (l *Ledger) Savepoints(ctx context.Context) ([]store.Savepoint, error) {
	var specs map[string]*savepointSpec
	var made map[string]*savepoint
	err := l.records.View(ctx, func(ctx context.Context, r Reader) (err error) {
		if specs, err = list[savepointSpec](ctx, r, savepointSpecKind); err == nil {
			made, err = list[savepoint](ctx, r, savepointKind)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read named checkpoints: %w", err)
	}

	var all []store.Savepoint
	for key, spec := range specs {
		s := store.Savepoint{Name: string(spec.Name), RetainLog: spec.RetainLog, DeleteRequested: spec.Delete, State: store.SavepointRequested}
		if m := made[key]; m != nil {
			s.State, s.Checkpoint, s.At, s.Reason, s.RetainedBytes = m.State, m.Checkpoint.value(), m.At, string(m.Reason), m.RetainedBytes
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b store.Savepoint) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// SaveSavepoint implements store.SavepointWriter.
func (l *Ledger) SaveSavepoint(ctx context.Context, epoch store.Epoch, n store.Savepoint) error {
	err := l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		if _, err := getSavepoint(ctx, tx, n.Name); err != nil {
			return err
		}
		return put(ctx, tx, savepointKind, keyOf(n.Name), savepoint{
			State: n.State, Checkpoint: recordOf(n.Checkpoint), At: utc(n.At), Reason: reasonText(n.Reason), RetainedBytes: n.RetainedBytes,
		})
	})
	return wrap(err, "save checkpoint %s", n.Name)
}

// reasonText returns a reason as a record stores it.
func reasonText(reason string) text { return text(errortext.Sanitize(reason, 0, false)) }

// DeleteSavepoint implements store.SavepointWriter.
func (l *Ledger) DeleteSavepoint(ctx context.Context, epoch store.Epoch, name string) error {
	err := l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		if err := tx.Delete(ctx, savepointSpecKind, keyOf(name)); err != nil {
			return err
		}
		return tx.Delete(ctx, savepointKind, keyOf(name))
	})
	return wrap(err, "delete checkpoint %s", name)
}
