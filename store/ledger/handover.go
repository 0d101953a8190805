package ledger

import (
	"context"

	"github.com/sluicebox/sluicebox/store"
)

// handOverKey is the key of the record of the latest request for a hand-over.
const handOverKey = "hand-over"

// handOver is a store.HandOver in a record.
type handOver struct {
	To text  `json:"to"`
	N  int64 `json:"n"`
}

// handOvers are the requests for a hand-over.
type handOvers struct{ records Backend }

// RequestHandOver implements store.HandOvers.
func (l handOvers) RequestHandOver(ctx context.Context, to string) error {
	err := l.records.Request(ctx, func(ctx context.Context, tx Tx, nth int64) error {
		return put(ctx, tx, RelayKind, handOverKey, handOver{To: text(to), N: nth})
	})
	return wrap(err, "request hand-over to %s", to)
}

// HandOver implements store.HandOvers.
func (l handOvers) HandOver(ctx context.Context) (latest store.HandOver, err error) {
	err = l.records.View(ctx, func(ctx context.Context, r Reader) error {
		rec, err := get[handOver](ctx, r.Get, RelayKind, handOverKey)
		if rec != nil {
			latest = store.HandOver{To: string(rec.To), N: rec.N}
		}
		return err
	})
	return latest, wrap(err, "read request for a hand-over")
}
