package shards

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// maxSilence is several times the interval at which a feeder writes into an idle partition.
const maxSilence = 10 * time.Second

// Shared is what the relays of all partitions of a process use together.
type Shared struct {
	cfg      *Config
	client   []kgo.Opt
	database sluicebox.Database
	feeder   ledger.Store   // under the name of the feeder
	markers  capture.Stream // writes into the database's log, under that name
}

// NewShared returns what shards share. options are those of a relay without shards. It opens no
// connection. Close it when no shard runs any more.
func NewShared(cfg *Config, options *sluicebox.Options, client string) (*Shared, error) {
	s := &Shared{cfg: cfg, database: options.Database}
	var err error
	if s.client, err = cfg.options(client); err != nil {
		return nil, err
	}
	outboxes := outboxesOf(options)
	if s.feeder, err = options.Database.Store(store.Settings{Name: options.Name, Holder: options.Holder, Outboxes: outboxes, IdleTimeout: options.IdleTimeout}); err != nil {
		return nil, err
	}
	if s.markers, err = options.Database.Stream(capture.Settings{Name: options.Name, Outboxes: outboxes}); err != nil {
		s.feeder.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the sessions.
func (s *Shared) Close() {
	s.markers.Close()
	s.feeder.Close()
}

// Database returns the database of the relay of a partition: its log is the partition, and of the tables
// it sees the rows of the partition.
func (s *Shared) Database(partition int) sluicebox.Database {
	return &shardDatabase{Database: s.database, of: s, partition: partition}
}

// Mark implements kafka.Database.
func (s *Shared) Mark(ctx context.Context, token string) error { return s.markers.Mark(ctx, token) }

// Compare implements kafka.Database.
func (s *Shared) Compare(a, b store.Position) int { return s.markers.Compare(a, b) }

// Leader implements kafka.Database.
func (s *Shared) Leader(ctx context.Context) (store.Leader, error) { return s.feeder.Leader(ctx) }

// shardDatabase is the database of the relay of one partition.
type shardDatabase struct {
	sluicebox.Database
	of        *Shared
	partition int
}

// besides is a store that shares its sessions with the stores of shards.
type besides interface {
	Beside(of store.Settings) (ledger.Store, error)
}

// storeBeside returns the store of a shard, which shares the sessions of another store if the database can.
func storeBeside(other store.Tables, db sluicebox.Database, of store.Settings) (ledger.Store, error) {
	if shared, is := other.(besides); is {
		return shared.Beside(of)
	}
	return db.Store(of)
}

// Store implements sluicebox.Database.
func (d *shardDatabase) Store(of store.Settings) (ledger.Store, error) {
	st, err := storeBeside(d.of.feeder.Tables, d.Database, of)
	if err == nil {
		st.Tables = shardTables{st.Tables, d.of, d.partition, d.of.cfg.Partitions}
	}
	return st, err
}

// Stream implements sluicebox.Database.
func (d *shardDatabase) Stream(of capture.Settings) (capture.Stream, error) {
	src, err := kafka.New(kafka.Config{
		Client: d.of.client, Topic: d.of.cfg.Topic, Partition: d.partition, Partitions: d.of.cfg.Partitions,
		Database: d.of, Outboxes: of.Outboxes, MaxBatchBytes: of.MaxBatchBytes,
	})
	if err != nil {
		return nil, err // not a nil Source
	}
	return src, nil
}

// MaxSilence implements sluicebox.Database.
func (d *shardDatabase) MaxSilence() time.Duration { return maxSilence }

// shardTables are the tables as the relay of one partition sees them.
type shardTables struct {
	store.Tables
	of                    *Shared
	partition, partitions int
}

// View implements store.Viewer.
func (t shardTables) View(ctx context.Context, snapshot string) (store.View, error) {
	view, err := t.Tables.View(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return kafka.ShardView(view, t.partition, t.partitions), nil
}

// Prune implements store.Pruner. The relay of one partition prunes for all.
func (t shardTables) Prune(ctx context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	if t.partition != 0 {
		return store.PruneResult{}, nil
	}
	return t.Tables.Prune(ctx, epoch, p)
}

// outboxesOf returns the tables of a relay.
func outboxesOf(options *sluicebox.Options) []store.Outbox {
	tables := make([]store.Outbox, len(options.Outboxes))
	for i := range options.Outboxes {
		tables[i] = options.Outboxes[i].StoreOutbox()
	}
	return tables
}
