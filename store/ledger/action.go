package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// actionKind is the kind of the records of operator actions. The key is the number of the
// request that wrote the action, so that keys are in the order of time.
const actionKind = "action"

// action is a store.Action in a record.
type action struct {
	At     time.Time `json:"at"`
	Who    text      `json:"who"`
	From   text      `json:"from,omitempty"`
	What   text      `json:"what"`
	Target text      `json:"target,omitempty"`
	Reason text      `json:"reason,omitempty"`
	Result text      `json:"result"`
}

// actions is the log of actions.
type actions struct{ records Backend }

// RecordAction implements store.ActionLog. It also deletes the oldest actions.
func (l actions) RecordAction(ctx context.Context, a store.Action) error {
	err := l.records.Request(ctx, func(ctx context.Context, tx Tx, nth int64) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		var keys []string
		err = tx.List(ctx, actionKind, "", 0, func(r Record) error {
			keys = append(keys, r.Key)
			return nil
		})
		if err != nil {
			return err
		}
		if old := len(keys) + 1 - store.MaxActions; old > 0 {
			if err := tx.Delete(ctx, actionKind, keys[:old]...); err != nil {
				return err
			}
		}
		return put(ctx, tx, actionKind, fmt.Sprintf("%016x", nth), action{
			At: utc(now), Who: text(a.Who), From: text(a.From), What: text(a.What), Target: text(a.Target),
			Reason: text(a.Reason), Result: reasonText(a.Result),
		})
	})
	return wrap(err, "record action %s", a.What)
}

// Actions implements store.ActionLog.
func (l actions) Actions(ctx context.Context, limit int) ([]store.Action, error) {
	var all []store.Action
	err := l.records.View(ctx, func(ctx context.Context, r Reader) error {
		all = nil
		return r.List(ctx, actionKind, "", 0, func(rec Record) error {
			var a action
			if err := decode(actionKind, rec.Key, rec.Body, &a); err != nil {
				return err
			}
			all = append(all, store.Action{
				At: a.At, Who: string(a.Who), From: string(a.From), What: string(a.What), Target: string(a.Target),
				Reason: string(a.Reason), Result: string(a.Result),
			})
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read actions: %w", err)
	}
	slices.Reverse(all)
	return all[:min(limit, len(all))], nil
}
