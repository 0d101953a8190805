package mongo

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

var _ store.Store = (*Store)(nil)

// ownPrefix begins the names of the relay's own collections.
const ownPrefix = "sluicebox_"

// The relay's own collections.
const (
	ownMeta       = ownPrefix + "meta"
	ownLeader     = ownPrefix + "leader"
	ownLease      = ownPrefix + "lease"
	ownCheckpoint = ownPrefix + "checkpoint"
	ownMarker     = ownPrefix + "marker" // the source's
	ownParked     = ownPrefix + "parked"
	ownHold       = ownPrefix + "hold"
	ownWish       = ownPrefix + "wish"
	ownNamed      = ownPrefix + "named"
	ownReplay     = ownPrefix + "replay"
	ownReplayRow  = ownPrefix + "replay_row"
	ownReplayErr  = ownPrefix + "replay_error"
)

// Store keeps the state of outbox documents in their own collections, and the relay's
// own in collections of the URL's database whose names begin with sluicebox_. All
// methods are safe for concurrent use.
type Store struct {
	name     string
	holder   string
	takeover time.Duration
	outboxes *outboxes.Set

	server *server
	writer *writer
	aside  *writer     // of outcomes that need no transaction, so that claims need not wait for them
	locked atomic.Bool // the store has taken the lock once, and raises under it alone
	grant  grant
	kept   kept

	locking sync.Mutex     // held by the call that asks for the lock
	token   *bson.ObjectID // of a lease that was asked for and not answered; locking guards it

	life   *lifetime.Lifetime
	closed sync.Once
}

// New returns a store. It opens no connection.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout,
		outboxes: outboxes.New(cfg.Outboxes), life: lifetime.New(),
		server: &server{url: cfg.URL, application: "sluicebox " + cfg.Name},
	}
	s.writer, s.aside = newWriter(s.server, s.life), newWriter(s.server, s.life)
	return s, nil
}

// Close ends all sessions, also those of open views, and the calls that use them. It
// returns when nothing of the store is left. Calls after it fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.life.End()
		s.writer.Close()
		s.aside.Close()
		s.life.Wait()
		s.server.disconnect()
	})
}

// AwaitTable implements store.TableAwaiter.
func (s *Store) AwaitTable(_ context.Context, outbox string) error {
	_, err := s.outboxes.Find(outbox)
	return err
}
