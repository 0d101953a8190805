package mysql

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

var _ store.Tables = (*Store)(nil)

// ownPrefix is the prefix of the names of the relay's tables.
const ownPrefix = "sluicebox_"

// Store keeps the state of outbox rows in their own tables. The relay's records are in
// tables of the same database whose names begin with sluicebox_; see package ledger. All
// methods are safe for concurrent use.
type Store struct {
	*ledger.Ledger
	*deadletter.Letters

	name     string
	holder   string
	takeover time.Duration
	outboxes *outboxes.Set

	claims, operator, spillSession, replay seat
	outcomes                               [2]seat
	settling                               *sessions.Pair // chooses one of outcomes
	tableWaitSession                       seat           // waits for locked tables
	control                                *link          // epoch and checkpoint
	lockSession                            *link          // acquires the lock, which then owns the session
	lockSessionID                          atomic.Int64   // connection id of the session that holds, or has lost, the lock; 0 for none
	viewConfig                             *mysql.Config  // for sessions that read
	leaderConn                             *conn          // control's session at the last AcquireLeadership; guarded by its token

	cfg      Config
	shares   *sessions.Shares[*rowLinks]
	lifetime *sessions.Lifetime
	closed   sync.Once
}

// New returns a store. It opens no session.
func New(cfg Config) (*Store, error) {
	if err := validate(&cfg); err != nil {
		return nil, err
	}
	life := sessions.NewLifetime()
	own, err := newRowLinks(&cfg, life)
	if err != nil {
		return nil, err
	}
	shared := sessions.NewShares(life, own, func() (*rowLinks, error) { return newRowLinks(&cfg, life) })
	return newStore(cfg, life, own, shared)
}

// Beside returns the store of another relay on the same tables. It has a lock and a session for its leadership of its
// own. The others it shares with more such stores. Close it before s.
func (s *Store) Beside(of store.Settings) (ledger.Store, error) {
	cfg := s.cfg
	cfg.Name, cfg.Holder, cfg.TakeoverTimeout = of.Name, of.Holder, of.TakeoverTimeout
	if err := validate(&cfg); err != nil {
		return ledger.Store{}, err
	}
	set, err := s.shares.Next()
	if err != nil {
		return ledger.Store{}, err
	}
	st, err := newStore(cfg, sessions.NewLifetime(), set, s.shares)
	if err != nil {
		return ledger.Store{}, err
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}, nil
}

func newStore(cfg Config, life *sessions.Lifetime, rows *rowLinks, shared *sessions.Shares[*rowLinks]) (*Store, error) {
	s := &Store{
		name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout,
		outboxes: outboxes.New(cfg.Outboxes), cfg: cfg, shares: shared, lifetime: life,
		claims: seat{rows.claims, life}, outcomes: [2]seat{{rows.outcomes[0], life}, {rows.outcomes[1], life}}, settling: rows.settling, operator: seat{rows.operator, life},
		spillSession: seat{rows.spill, life}, replay: seat{rows.replay, life}, tableWaitSession: seat{rows.tables, life},
	}
	var err error
	if s.control, err = openLink(&cfg, "control", raiseTimeout, life); err != nil {
		return nil, err
	}
	s.control.keepAlive = true
	if s.lockSession, err = openLink(&cfg, "leader", lockWait, life); err != nil {
		return nil, err
	}
	s.lockSession.check = checkOnePrimary
	if s.viewConfig, err = sessionURL(&cfg, "view"); err != nil {
		return nil, err
	}
	s.Letters = deadletter.New(s.outboxes, letters{s})
	s.Ledger = ledger.New(ledger.Config{
		Outboxes: cfg.Outboxes, Records: backend{s, s.operator}, Spill: backend{s, s.spillSession}, Replay: backend{s, s.replay},
		AreFailed: s.areFailed, BatchRows: maxBatchRows, BatchBytes: maxBatchBytes,
	})
	return s, nil
}

// Close ends all sessions, those of open views included, and the calls that use them. Sessions that stores share end
// with the one that they are beside. It returns when the store holds no more resources. Later calls fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.lifetime.End()
		s.control.Close()
		s.lockSession.Close()
		for _, set := range s.shares.Of(s.lifetime) {
			for _, l := range set.all() {
				l.Close()
			}
		}
		s.lifetime.Wait()
	})
}

// outbox returns a configured outbox.
func (s *Store) outbox(name string) (*store.Outbox, error) { return s.outboxes.Find(name) }

const (
	// lockWait is how long a statement waits for a row lock of another session.
	lockWait = 2 * time.Second
	// raiseTimeout is how long one try of AcquireLeadership waits for writes of an
	// earlier leader.
	raiseTimeout = time.Second
	// viewTimeout is how long a view's session may be idle, and how long its reader may
	// take to process what the server sent.
	viewTimeout = 10 * time.Minute
)

// commonSettings returns the settings of every session, as SQL values: text in UTF-8,
// times in UTC, and an error for a value that does not fit its column, whatever the
// server's defaults are.
func commonSettings() map[string]string {
	return map[string]string{
		"autocommit":               "0",
		"character_set_client":     "utf8mb4",
		"character_set_connection": "utf8mb4",
		"character_set_results":    "utf8mb4",
		"sql_mode":                 "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
		"sql_safe_updates":         "0",
		"sql_select_limit":         "18446744073709551615",
		"time_zone":                "'+00:00'",
	}
}

// writeSettings returns the settings of a session that writes. The server ends the
// session and rolls back its transaction after store.MinLockLease without traffic, so a
// relay that is frozen or cut off keeps neither rows nor leadership.
func writeSettings(wait time.Duration) map[string]string {
	set := commonSettings()
	silence := seconds(store.MinLockLease)
	maps.Copy(set, map[string]string{
		"wait_timeout":             silence,
		"net_read_timeout":         silence,
		"net_write_timeout":        silence,
		"innodb_lock_wait_timeout": seconds(wait),
		"lock_wait_timeout":        seconds(wait),
	})
	return set
}

// readSettings returns the settings of a session that reads, with long timeouts, because
// a reader may have to place one page of rows before it reads the next.
func readSettings() map[string]string {
	set := commonSettings()
	maps.Copy(set, map[string]string{"wait_timeout": seconds(viewTimeout), "net_write_timeout": seconds(viewTimeout)})
	return set
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
