package ledger

import (
	"context"
	"slices"
	"sync"
)

// maxLegKeys limits the keys in memory to some megabytes. With more records every look-up reads.
const maxLegKeys = 20_000

// legKeys knows which records of legs may exist, so that a row without one costs no statement. Most
// relays have none, or those of a few FAILED rows, and a start looks up every row that it reads.
//
// It is complete from AcquireLeadership on, because of three things. Every write of such a record is
// fenced by the epoch: the commands that move legs lead first, and requests of operators are carried
// out by the leader. So a write of an earlier leader, or of an earlier session of this process, has
// committed before the keys are read, or fails. And each write by this process adds its keys before
// its transaction can commit. A key whose record is gone, or was never committed, stays: it costs a
// look-up. A relay that has lost its leadership may miss a record; whatever it writes then is fenced.
// A backend whose fence has a gap, as that of a MongoDB server alone, may let the write of a frozen
// leader through later. Such a row may be sent twice, as without this.
type legKeys struct {
	mu       sync.RWMutex
	complete bool // otherwise any record may exist
	keys     map[string]struct{}
}

// forget makes every look-up read.
func (k *legKeys) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.complete, k.keys = false, nil
}

// none reports whether no record exists.
func (k *legKeys) none() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.complete && len(k.keys) == 0
}

// among returns the keys whose records may exist. It changes keys.
func (k *legKeys) among(keys []string) []string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if !k.complete {
		return keys
	}
	return slices.DeleteFunc(keys, func(key string) bool {
		_, may := k.keys[key]
		return !may
	})
}

// add adds the keys of records that a transaction is about to write.
func (k *legKeys) add(records map[string]*legRow) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.complete {
		return
	}
	for key := range records {
		k.keys[key] = struct{}{}
	}
	if len(k.keys) > maxLegKeys {
		k.complete, k.keys = false, nil
	}
}

// put writes records of legs. All of them are written here; see legKeys.
func (k *legKeys) put(ctx context.Context, tx Tx, records map[string]*legRow) error {
	k.add(records)
	return putAll(ctx, tx, legKind, records)
}

// load reads which records exist, for a leader that has written nothing yet.
func (k *legKeys) load(ctx context.Context, records Backend) error {
	var keys map[string]struct{}
	err := records.View(ctx, func(ctx context.Context, r Reader) error {
		keys = map[string]struct{}{}
		return r.List(ctx, legKind, "", maxLegKeys+1, func(rec Record) error {
			keys[rec.Key] = struct{}{}
			return nil
		})
	})
	if err != nil {
		return wrap(err, "read which rows have records of legs")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(keys) <= maxLegKeys {
		k.complete, k.keys = true, keys
	}
	return nil
}
