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
	ownSpilled    = ownPrefix + "parked"
	ownHold       = ownPrefix + "hold"
	ownRequest    = ownPrefix + "wish"
	ownSavepoint  = ownPrefix + "named"
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

	server        *server
	writer        *writer
	outcomeWriter *writer     // of outcomes that need no transaction, so that claims need not wait for them
	hasTakenLock  atomic.Bool // the store has taken the lock once, and raises under it alone
	grant         grant
	contention    contention

	locking sync.Mutex     // held by the call that asks for the lock
	token   *bson.ObjectID // of a lease that was asked for and not answered; locking guards it

	lifetime *lifetime.Lifetime
	closed   sync.Once
}

// New returns a store. It opens no connection.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout,
		outboxes: outboxes.New(cfg.Outboxes), lifetime: lifetime.New(),
		server: &server{url: cfg.URL, application: "sluicebox " + cfg.Name},
	}
	s.writer, s.outcomeWriter = newWriter(s.server, s.lifetime), newWriter(s.server, s.lifetime)
	return s, nil
}

// Close ends all sessions, also those of open views, and the calls that use them. It
// returns when nothing of the store is left. Calls after it fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.lifetime.End()
		s.writer.Close()
		s.outcomeWriter.Close()
		s.lifetime.Wait()
		s.server.disconnect()
	})
}

// AwaitTable implements store.TableAwaiter.
func (s *Store) AwaitTable(_ context.Context, outbox string) error {
	_, err := s.outboxes.Find(outbox)
	return err
}
