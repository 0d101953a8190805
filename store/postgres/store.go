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

	claims, outcomes, control, operator, spillSession, replay *session
	tableWaitSession                                          *session      // waits for tables locked by another session
	lockSession                                               *session      // tries to get the leader lock; lock takes its connection over on success
	lockPID                                                   atomic.Uint32 // server process of the session that holds, or has lost, the lock; 0 for none
	candidate                                                 *pgx.Conn     // lockSession's connection at the last attempt; only lockSession.do accesses it
	viewConfig                                                *pgx.ConnConfig
	leaderConn                                                *pgx.Conn // control's connection when the epoch was last raised; only control.do accesses it

	lifetime *sessions.Lifetime
	closed   sync.Once
}

// New returns a store. It opens no connection.
func New(cfg Config) (*Store, error) {
	if err := validate(&cfg); err != nil {
		return nil, err
	}

	s := &Store{name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout, outboxes: outboxes.New(cfg.Outboxes)}
	s.lifetime = sessions.NewLifetime()
	for _, to := range []struct {
		session  **session
		purpose  string
		settings map[string]string
	}{
		{&s.claims, "claims", rowSettings("250ms")},
		{&s.outcomes, "outcomes", rowSettings("250ms")},
		{&s.tableWaitSession, "tables", rowSettings(awaitTimeout)},
		{&s.control, "control", controlSettings()},
		{&s.operator, "operator", operatorSettings()},
		{&s.spillSession, "spilling", spillSettings()},
		{&s.replay, "replay", spillSettings()},
		{&s.lockSession, "leader", lockSettings()},
	} {
		conn, err := sessionConfig(cfg, to.purpose, to.settings)
		if err != nil {
			return nil, err
		}
		*to.session = newSession(conn, s.lifetime)
		s.applicationNames = append(s.applicationNames, conn.RuntimeParams["application_name"])
	}

	for _, sess := range []*session{s.claims, s.outcomes, s.operator, s.spillSession, s.replay, s.tableWaitSession} {
		sess.CloseIdle(cfg.IdleTimeout)
	}
	s.lockSession.check = s.checkDirect
	views, err := sessionConfig(cfg, "view", viewSettings())
	if err != nil {
		return nil, err
	}

	s.viewConfig = views
	s.Letters = deadletter.New(s.outboxes, letters{s})
	s.Ledger = ledger.New(ledger.Config{
		Outboxes: cfg.Outboxes, AreFailed: s.areFailed, BatchRows: maxBatchRows, BatchBytes: maxBatchBytes,
		Records: backend{s, s.operator, false}, Spill: backend{s, s.spillSession, false}, Replay: backend{s, s.replay, true},
	})
	return s, nil
}

// Close ends all sessions, those of open views included, and cancels the calls on them.
// It returns when nothing of the store is running. Later calls fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.lifetime.End()
		for _, sess := range s.sessions() {
			sess.Close()
		}
		s.lifetime.Wait()
	})
}

func (s *Store) sessions() []*session {
	return []*session{s.claims, s.outcomes, s.control, s.operator, s.spillSession, s.replay, s.tableWaitSession, s.lockSession}
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
