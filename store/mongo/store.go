package mongo

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

var _ store.Tables = (*Store)(nil)

// ownPrefix begins the names of the relay's collections.
const ownPrefix = "sluicebox_"

// The relay's collections.
const (
	ownMeta   = ownPrefix + "meta"
	ownLeader = ownPrefix + "leader"
	ownLease  = ownPrefix + "lease"
	ownRecord = ownPrefix + "record"
	ownQueue  = ownPrefix + "queue"
	ownMarker = ownPrefix + "marker" // written by the source
)

// Store keeps the state of outbox rows in their documents, and the relay's records in
// collections whose names begin with sluicebox_, in the database of the URL; see package
// ledger. All methods are safe for concurrent use.
type Store struct {
	*ledger.Ledger
	*deadletter.Letters

	cfg      Config
	name     string
	holder   string
	takeover time.Duration
	outboxes *outboxes.Set

	server        *server
	writer        *writer
	outcomeWriter *writer     // outcomes without a transaction; claims do not wait for it
	hasTakenLock  atomic.Bool // the lock was acquired once; from then on the epoch is raised only under it
	grant         grant
	contention    contention
	lastRecord    atomic.Pointer[recordDocument] // record that the last update locked and wrote; see writeTx

	locking sync.Mutex    // held while a call requests the lock
	token   bson.ObjectID // of a lease request without an answer; guarded by locking

	lifetime *sessions.Lifetime
	closed   sync.Once
}

// New returns a store without opening a connection.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newStore(cfg, newServer(cfg.URL, "sluicebox "+cfg.Name, nil)), nil
}

// Beside returns the store of another relay on the same collections. It uses the connections of s, because
// each shard is such a relay. Close it before s.
func (s *Store) Beside(of store.Settings) (ledger.Store, error) {
	cfg := s.cfg
	cfg.Name, cfg.Holder, cfg.TakeoverTimeout = of.Name, of.Holder, of.TakeoverTimeout
	if err := cfg.Validate(); err != nil {
		return ledger.Store{}, err
	}
	st := newStore(cfg, newServer("", "", s.server))
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

func newStore(cfg Config, on *server) *Store {
	s := &Store{
		cfg: cfg, name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout,
		outboxes: outboxes.New(cfg.Outboxes), lifetime: sessions.NewLifetime(), server: on,
	}
	s.writer, s.outcomeWriter = newWriter(s.server, s.lifetime), newWriter(s.server, s.lifetime)
	s.Letters = deadletter.New(s.outboxes, letters{s})
	own := backend{s}
	s.Ledger = ledger.New(ledger.Config{
		Outboxes: cfg.Outboxes, Records: own, Spill: own, Replay: own, AreFailed: s.areFailed, BatchRows: maxSpillRows, BatchBytes: maxSpillBytes,
	})
	return s
}

// Close ends all sessions, including those of open views, and the calls that use them. It
// returns once the store has released everything. Later calls fail.
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
