package postgres

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/ledger"
)

var _ store.Tables = (*Store)(nil)

// Store keeps the state of outbox rows in the outbox tables, and the relay's records in the
// schema sluicebox; see package ledger. All methods are safe for concurrent use.
type Store struct {
	*ledger.Ledger
	*deadletter.Letters

	name             string
	holder           string
	takeover         time.Duration
	outboxes         *outboxes.Set
	applicationNames []string // application_name of each session

	claims, operator, spillSession, replay seat
	outcomes                               [2]seat
	settling                               *sessions.Pair // chooses one of outcomes
	tableWaitSession                       seat           // waits for tables locked by another session
	control                                *session       // raises the epoch, and writes barriers
	lockSession                            *session       // tries to get the leader lock; lock takes its connection over on success
	lockPID                                atomic.Uint32  // server process of the session that holds, or has lost, the lock; 0 for none
	candidate                              *pgx.Conn      // lockSession's connection at the last attempt; only lockSession.do accesses it
	viewConfig                             *pgx.ConnConfig
	leaderConn                             *pgx.Conn // control's connection when the epoch was last raised; only control.do accesses it

	cfg      Config
	shares   *sessions.Shares[*rowSessions]
	lifetime *sessions.Lifetime
	closed   sync.Once
}

// New returns a store. It opens no connection.
func New(cfg Config) (*Store, error) {
	if err := validate(&cfg); err != nil {
		return nil, err
	}
	life := sessions.NewLifetime()
	own, err := newRowSessions(cfg, life)
	if err != nil {
		return nil, err
	}
	shared := sessions.NewShares(life, own, func() (*rowSessions, error) { return newRowSessions(cfg, life) })
	return newStore(cfg, life, own, shared)
}

// Beside returns the store of another relay on the same tables. It has a lock and a session for its leadership of its
// own. The others it shares with more such stores: a relay of a shard has its part of the rows only, and
// together they would have hundreds. Close it before s.
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

func newStore(cfg Config, life *sessions.Lifetime, rows *rowSessions, shared *sessions.Shares[*rowSessions]) (*Store, error) {
	s := &Store{
		name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout, outboxes: outboxes.New(cfg.Outboxes),
		cfg: cfg, shares: shared, lifetime: life, settling: rows.settling,
	}
	for _, to := range []struct {
		seat *seat
		of   *session
	}{
		{&s.claims, rows.claims}, {&s.outcomes[0], rows.outcomes[0]}, {&s.outcomes[1], rows.outcomes[1]}, {&s.operator, rows.operator},
		{&s.spillSession, rows.spill}, {&s.replay, rows.replay}, {&s.tableWaitSession, rows.tables},
	} {
		*to.seat = seat{to.of, life}
		s.applicationNames = append(s.applicationNames, to.of.applicationName())
	}
	var err error
	if s.control, err = openSession(cfg, "control", controlSettings(), life); err != nil {
		return nil, err
	}
	if s.lockSession, err = openSession(cfg, "leader", lockSettings(), life); err != nil {
		return nil, err
	}
	s.applicationNames = append(s.applicationNames, s.control.applicationName(), s.lockSession.applicationName())
	s.lockSession.check = s.checkDirect
	if s.viewConfig, err = sessionConfig(cfg, "view", viewSettings()); err != nil {
		return nil, err
	}
	s.Letters = deadletter.New(s.outboxes, letters{s})
	s.Ledger = ledger.New(ledger.Config{
		Outboxes: cfg.Outboxes, AreFailed: s.areFailed, BatchRows: maxBatchRows, BatchBytes: maxBatchBytes,
		Records: backend{s, s.operator, false}, Spill: backend{s, s.spillSession, false}, Replay: backend{s, s.replay, true},
	})
	return s, nil
}

// Close ends all sessions, those of open views included, and cancels the calls on them. Sessions that stores share end
// with the one that they are beside. It returns when nothing of the store is running. Later calls fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.lifetime.End()
		s.control.Close()
		s.lockSession.Close()
		for _, set := range s.shares.Of(s.lifetime) {
			for _, sess := range set.all() {
				sess.Close()
			}
		}
		s.lifetime.Wait()
	})
}

func (s *Store) sessions() []*session {
	return []*session{
		s.claims.session, s.outcomes[0].session, s.outcomes[1].session, s.control, s.operator.session, s.spillSession.session, s.replay.session,
		s.tableWaitSession.session, s.lockSession,
	}
}

// commonSettings are the settings of every session:
//
//   - The statements rely on READ COMMITTED: each one sees rows committed before it
//     began, and rereads a row that changed while it waited.
//   - A frozen or disconnected relay must not keep the leader row locked, so a session
//     that is idle in a transaction, or waits for a lock without a client, is ended.
//   - Ids and groups must be written as the log writes them, whatever the role's settings
//     are.
//   - A row hidden by a policy is an error, because it would look like a deleted row.
//   - Keepalives probe a silent host after 5 s, which is later than silence costs the
//     lock. The connection is given up after 14 s.
func commonSettings() map[string]string {
	return map[string]string{
		"bytea_output":                        "hex",
		"client_connection_check_interval":    "1s",
		"client_encoding":                     "UTF8",
		"datestyle":                           "ISO",
		"default_transaction_isolation":       "read committed",
		"extra_float_digits":                  "3",
		"idle_in_transaction_session_timeout": "4s",
		"intervalstyle":                       "postgres",
		"jit":                                 "off",
		"row_security":                        "off",
		"tcp_keepalives_idle":                 "5",
		"tcp_keepalives_interval":             "3",
		"tcp_keepalives_count":                "3",
	}
}

// rowSettings are the settings of the sessions for claims and outcomes. Their statements
// look up a few rows by id in a table of any size. A prepared statement keeps its plan:
// planned on an empty table, where a scan looks cheaper than the index, it would scan the
// grown table too. So plans that read a whole table are disabled, and one generic plan
// serves from the first call.
//
// lockTimeout bounds the wait for a row locked by another session; claims and outcomes
// then skip the row. A lock_timeout in the URL takes precedence.
func rowSettings(lockTimeout string) map[string]string {
	return map[string]string{
		"lock_timeout":       lockTimeout,
		"enable_seqscan":     "off",
		"enable_hashjoin":    "off",
		"enable_mergejoin":   "off",
		"plan_cache_mode":    "force_generic_plan",
		"synchronous_commit": "off",
	}
}

func controlSettings() map[string]string {
	return map[string]string{"synchronous_commit": "on"}
}

// operatorSettings are the settings of the session for records and dead letters. Its
// statements touch thousands of rows, and wait for a locked row as outcomes do.
func operatorSettings() map[string]string {
	return map[string]string{
		"lock_timeout":       "1s",
		"plan_cache_mode":    "force_custom_plan",
		"synchronous_commit": "on",
	}
}

// spillSettings are the settings of the sessions for spilled rows and for replays. Their
// statements too are planned once, perhaps while nothing is spilled. A lane is read
// through its index, in order, up to the limit; a bitmap scan would read the whole lane.
func spillSettings() map[string]string {
	set := rowSettings("1s")
	set["enable_bitmapscan"] = "off"
	set["synchronous_commit"] = "on"
	return set
}

// viewSettings leave a view enough time, because it is read in pages and its reader may
// have to place one page before it requests the next.
func viewSettings() map[string]string {
	return map[string]string{
		"idle_in_transaction_session_timeout": "5min",
		"hash_mem_multiplier":                 "16",                // room to hash a million excluded ids
		"max_parallel_workers_per_gather":     "0",                 // leave the parallel workers to the services
		"plan_cache_mode":                     "force_custom_plan", // the number of excluded ids varies widely
	}
}

func sessionConfig(cfg Config, purpose string, settings map[string]string) (*pgx.ConnConfig, error) {
	conn, err := ParseURL(cfg.URL, "sluicebox "+cfg.Name+" "+purpose)
	if err != nil {
		return nil, err
	}
	SetPassword(conn, cfg.Password)
	conn.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	for _, set := range []map[string]string{commonSettings(), settings} {
		for key, value := range set {
			if _, given := conn.RuntimeParams[key]; !given || key != "lock_timeout" {
				conn.RuntimeParams[key] = value
			}
		}
	}
	return conn, nil
}

// outbox returns the configured outbox of that name.
func (s *Store) outbox(name string) (*store.Outbox, error) { return s.outboxes.Find(name) }
