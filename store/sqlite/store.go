package sqlite

import (
	"context"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

var _ store.Tables = (*Store)(nil)

// Store keeps the state of outbox rows in their tables, and the relay's records in tables
// whose names begin with sluicebox_; see package ledger. All methods are safe for concurrent use.
type Store struct {
	*ledger.Ledger
	*deadletter.Letters

	name     string
	holder   string
	path     string
	takeover time.Duration
	outboxes *outboxes.Set

	writer   *session
	lifetime *sessions.Lifetime
	closed   sync.Once
}

// New returns a store. It opens nothing.
func New(cfg Config) (*Store, error) {
	if err := validate(&cfg); err != nil {
		return nil, err
	}
	path, err := ParseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{name: cfg.Name, holder: store.NewHolder(cfg.Holder), path: path, takeover: cfg.TakeoverTimeout, outboxes: outboxes.New(cfg.Outboxes)}
	s.lifetime = sessions.NewLifetime()
	s.writer = newSession(path, s.name, s.holder, s.lifetime)
	own := backend{s}
	s.Letters = deadletter.New(s.outboxes, letters{s})
	s.Ledger = ledger.New(ledger.Config{Outboxes: cfg.Outboxes, Records: own, Spill: own, Replay: own, AreFailed: s.areFailed, BatchRows: maxBatchRows})
	return s, nil
}

// Close closes the connections, also those of open views, ends the calls that use them, and
// releases the lock. It returns when all of them have ended. Later calls fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.lifetime.End()
		s.lifetime.Wait()
		s.writer.Close()
	})
}

// outbox returns a configured outbox.
func (s *Store) outbox(name string) (*store.Outbox, error) { return s.outboxes.Find(name) }

// AwaitTable implements store.TableAwaiter. SQLite has no table locks: a writer that keeps
// the database locked delays everything that writes.
func (s *Store) AwaitTable(_ context.Context, outbox string) error {
	_, err := s.outboxes.Find(outbox)
	return err
}
