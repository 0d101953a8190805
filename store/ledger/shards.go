package ledger

import (
	"context"

	"github.com/sluicebox/sluicebox/store"
)

// shardsKey is the key of the record of the shards.
const shardsKey = "shards"

// Shards says which relays send the rows of a relay's outboxes. The zero value is the relay itself.
type Shards struct {
	// Topic is the topic between capture and the relays of its partitions.
	Topic string
	// Partitions is the number of these relays, see store.ShardName; 0 is none.
	Partitions int
	// Former is the number of relays of partitions that sent before, and of which some may still do so.
	// No relay sends until it is 0.
	Former int
}

// shards is a Shards in a record.
type shards struct {
	Topic      text `json:"topic"`
	Partitions int  `json:"partitions"`
	Former     int  `json:"former,omitempty"`
}

// shardRecords are the records of who sends the rows.
type shardRecords struct{ records Backend }

// Shards returns which relays send the rows, as last saved.
func (l shardRecords) Shards(ctx context.Context) (now Shards, err error) {
	err = l.records.View(ctx, func(ctx context.Context, r Reader) error {
		now = Shards{}
		rec, err := get[shards](ctx, r.Get, RelayKind, shardsKey)
		if rec != nil {
			now = Shards{Topic: string(rec.Topic), Partitions: rec.Partitions, Former: rec.Former}
		}
		return err
	})
	return now, wrap(err, "read shards")
}

// SaveShards saves which relays send the rows.
func (l shardRecords) SaveShards(ctx context.Context, epoch store.Epoch, now Shards) error {
	err := l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		return put(ctx, tx, RelayKind, shardsKey, shards{Topic: text(now.Topic), Partitions: now.Partitions, Former: now.Former})
	})
	return wrap(err, "save shards")
}
