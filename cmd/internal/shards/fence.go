package shards

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// parallelEnds is how many shards are tried at a time. Each costs a session.
const parallelEnds = 8

// Alone returns the database of a relay without scale. Such a relay stands by while shards of its name
// work, and ends them for good before it sends. So processes with and without scale may run at the
// same time, for example during a rolling update, and only the rows of one kind are sent.
func Alone(db sluicebox.Database) sluicebox.Database { return aloneDatabase{db} }

type aloneDatabase struct{ sluicebox.Database }

// Store implements sluicebox.Database.
func (d aloneDatabase) Store(of store.Settings) (ledger.Store, error) {
	return openFenced(d.Database, of, ledger.Shards{})
}

// openFenced opens the store of the relay of a name, which sends by itself or feeds shards.
func openFenced(db sluicebox.Database, of store.Settings, want ledger.Shards) (ledger.Store, error) {
	st, err := db.Store(of)
	if err != nil {
		return st, err
	}
	st.Tables = fencedTables{Tables: st.Tables, own: st, db: db, of: of, want: want}
	return st, nil
}

// fencedTables are the tables of a relay that leads under the name of the relay. The record of the shards,
// which only such a leader writes, says who sends the rows:
//
//   - The leader writes the record, and then ends each shard of before under the lock of the shard. It raises
//     the epoch of the shard, so a frozen owner writes nothing, and deletes its checkpoint and its spilled rows.
//   - A shard takes its lock, raises its epoch, and then reads the record. So either the leader finds
//     the lock held, or the shard finds that it must not send.
type fencedTables struct {
	store.Tables
	own  ledger.Store // without the fence
	db   sluicebox.Database
	of   store.Settings
	want ledger.Shards
}

// Lock implements store.Locker. The lock is not free while other shards than the relay's work.
func (t fencedTables) Lock(ctx context.Context) (store.Lock, error) {
	lock, err := t.Tables.Lock(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.othersEnded(ctx); err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

// othersEnded returns a *store.LockedError while a shard works that the relay has to end.
func (t fencedTables) othersEnded(ctx context.Context) error {
	now, err := t.own.Shards(ctx)
	if err != nil || now == t.want {
		return err
	}
	return t.each(ctx, max(now.Partitions, now.Former), func(context.Context, ledger.Store) error { return nil })
}

// AcquireLeadership implements store.Leadership. It ends the shards of before.
func (t fencedTables) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	epoch, err := t.Tables.AcquireLeadership(ctx)
	if err == nil {
		err = t.takeOver(ctx, epoch)
	}
	return epoch, notLeader(err)
}

// notLeader makes a *store.LockedError end the leadership that was just acquired.
func notLeader(err error) error {
	var held *store.LockedError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: %w", held, store.ErrNotLeader)
	}
	return err
}

// takeOver ends the shards of before, after which the relay, or its own shards, may send.
func (t fencedTables) takeOver(ctx context.Context, epoch store.Epoch) error {
	before, err := t.own.Shards(ctx)
	if err != nil || before == t.want {
		return err
	}
	if before.Partitions == 0 && t.want.Partitions > 0 {
		if err := t.leaveAlone(ctx, epoch); err != nil {
			return err
		}
	}
	next := t.want
	if next.Former = max(before.Partitions, before.Former); next.Former > 0 {
		if err := t.own.SaveShards(ctx, epoch, next); err != nil {
			return err
		}
		err := t.each(ctx, next.Former, endShard)
		var held *store.LockedError
		if errors.As(err, &held) && before.Former == 0 { // the shards of before go on
			err = errors.Join(err, t.own.SaveShards(ctx, epoch, before))
		}
		if err != nil {
			return err
		}
	}
	return t.own.SaveShards(ctx, epoch, t.want)
}

// leaveAlone deletes what a relay without shards had spilled: the shards find these rows in the tables.
func (t fencedTables) leaveAlone(ctx context.Context, epoch store.Epoch) error {
	strays, err := t.own.StrayLegs(ctx)
	if err != nil {
		return err
	}
	if len(strays) > 0 {
		return &store.SetupError{
			Problem: fmt.Sprintf("rows of %s wait for it, and scale has no routes", strays[0].Leg()),
			Remedy:  "run the relay without scale until they are delivered, or give them up with sluicebox routes drop",
		}
	}
	_, err = t.own.DeleteSpilledAfter(ctx, epoch, store.Checkpoint{})
	return err
}

// endShard makes a shard forget what it had: its rows are found in the tables.
func endShard(ctx context.Context, shard ledger.Store) error {
	epoch, err := shard.AcquireLeadership(ctx)
	if err != nil {
		return err
	}
	if err := shard.SaveCheckpoint(ctx, epoch, store.Checkpoint{}); err != nil {
		return err
	}
	_, err = shard.DeleteSpilledAfter(ctx, epoch, store.Checkpoint{})
	return err
}

// each calls do for each of the first n shards while it holds the lock of the shard. It returns a
// *store.LockedError for a shard that works.
func (t fencedTables) each(ctx context.Context, n int, do func(context.Context, ledger.Store) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelEnds)
	for p := range n {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return t.one(ctx, p, do)
		})
	}
	err := group.Wait()
	var held *store.LockedError
	if errors.As(err, &held) { // the same text for whichever shard it is, because it is logged once
		return &store.LockedError{Holder: fmt.Sprintf("shards of %s, with another configuration of scale", t.of.Name)}
	}
	return err
}

// one calls do for a shard while it holds the lock of the shard.
func (t fencedTables) one(ctx context.Context, partition int, do func(context.Context, ledger.Store) error) error {
	of := t.of
	of.Name = store.ShardName(t.of.Name, partition)
	shard, err := storeBeside(t.own.Tables, t.db, of)
	if err != nil {
		return err
	}
	defer shard.Close()
	lock, err := shard.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	return do(ctx, shard)
}

// shardsOf returns the shards of a configuration.
func shardsOf(cfg *Config) ledger.Shards {
	return ledger.Shards{Topic: cfg.Topic, Partitions: cfg.Partitions}
}

// mayRun returns a *store.LockedError unless the shards of the configuration are the ones that send.
func (s *Shared) mayRun(ctx context.Context) error {
	now, err := s.feeder.Shards(ctx)
	if err != nil || now == shardsOf(s.cfg) {
		return err
	}
	switch {
	case now.Former > 0:
		return &store.LockedError{Holder: "a process that ends the shards of before"}
	case now.Partitions > 0:
		return &store.LockedError{Holder: fmt.Sprintf("the shards of topic %s with %d partitions", now.Topic, now.Partitions)}
	}
	return &store.LockedError{Holder: "a relay without scale, until a process with role capture leads"}
}

// Lock implements store.Locker.
func (t shardTables) Lock(ctx context.Context) (store.Lock, error) {
	if err := t.of.mayRun(ctx); err != nil {
		return nil, err
	}
	return t.Tables.Lock(ctx)
}

// AcquireLeadership implements store.Leadership.
func (t shardTables) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	epoch, err := t.Tables.AcquireLeadership(ctx)
	if err == nil {
		err = t.of.mayRun(ctx)
	}
	return epoch, notLeader(err)
}
