package postgres

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

var _ store.Store = (*Store)(nil)

// Store keeps the state of outbox rows in their own tables, and the relay's own
// in the schema sluicebox. All methods are safe for concurrent use.
type Store struct {
	name             string
	holder           string
	takeover         time.Duration
	outboxes         *outboxes.Set
	applicationNames []string // what the sessions call themselves

	claims, outcomes, control, operator, spillSession, replay *session
	tableWaitSession                                          *session      // waits for tables that somebody has locked
	lockSession                                               *session      // asks for the lock; who gets it takes its connection
	lockPID                                                   atomic.Uint32 // server process of the session that holds, or has lost, the lock; 0 for none
	candidate                                                 *pgx.Conn     // leader's connection at the last try; leader's turn guards it
	viewConfig                                                *pgx.ConnConfig
	leaderConn                                                *pgx.Conn // control's connection at the last Lead; control's turn guards it

	lifetime *lifetime.Lifetime
	closed   sync.Once
}

// New returns a store. It opens no connection.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout, outboxes: outboxes.New(cfg.Outboxes)}
	s.lifetime = lifetime.New()
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
		{&s.spillSession, "parking", spillSettings()},
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
	s.lockSession.check = s.checkDirect
	views, err := sessionConfig(cfg, "view", viewSettings())
	if err != nil {
		return nil, err
	}
	s.viewConfig = views
	return s, nil
}

// Close ends all sessions, also those of open views, and the calls that use
// them. It returns when nothing of the store is left. Calls after it fail.
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

// commonSettings are those of every session. The statements lean on READ
// COMMITTED: each sees what was committed when it began and looks again at a row
// that was changed under it. A session that its relay left in a transaction or
// waiting for a lock, frozen or cut off, must not keep the leader row locked. Ids
// and groups are written as the log writes them, whatever the role's settings
// say. A row that a policy hides is an error: it would be taken for one that was
// deleted. A host that is silent for 5 s is asked whether it is there, which is
// later than a lock is lost by silence, and given up after 14 s.
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

// rowSettings are those of the sessions for claims and outcomes. Their
// statements look a few rows up by id in a table of any size. A statement is
// planned once, perhaps while the table is empty and a scan looks cheaper than
// the index; it then stays with its plan while the table grows. So the plans
// that read a whole table are ruled out, and one generic plan serves from the
// first call on.
//
// They wait so long for what somebody else has locked: claims and outcomes then pass
// over it. A lock_timeout in the URL goes before this one.
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

// operatorSettings are those of the session for holds and dead letters. It takes
// rows by the thousand, and waits for a locked one as outcomes do.
func operatorSettings() map[string]string {
	return map[string]string{
		"lock_timeout":       "1s",
		"plan_cache_mode":    "force_custom_plan",
		"synchronous_commit": "on",
	}
}

// spillSettings are those of the sessions for parked rows and for replays. Their
// statements are planned once, too, perhaps while nothing is parked. A lane is read by its index,
// in order, and as far as is asked for; a bitmap would take all of it.
func spillSettings() map[string]string {
	set := rowSettings("1s")
	set["enable_bitmapscan"] = "off"
	set["synchronous_commit"] = "on"
	return set
}

// viewSettings give a view time: it is read in pages, and its reader may have to
// place one before it takes the next.
func viewSettings() map[string]string {
	return map[string]string{
		"idle_in_transaction_session_timeout": "5min",
		"hash_mem_multiplier":                 "16",                // room to hash a million ids to leave out
		"max_parallel_workers_per_gather":     "0",                 // they are the services'
		"plan_cache_mode":                     "force_custom_plan", // the ids to leave out are few or many
	}
}

func sessionConfig(cfg Config, purpose string, settings map[string]string) (*pgx.ConnConfig, error) {
	conn, err := ParseURL(cfg.URL, "sluicebox "+cfg.Name+" "+purpose)
	if err != nil {
		return nil, err
	}
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

// outbox finds a configured outbox.
func (s *Store) outbox(name string) (*store.Outbox, error) { return s.outboxes.Find(name) }
