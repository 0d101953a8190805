package mysql

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

var _ store.Store = (*Store)(nil)

// ownPrefix begins the names of the relay's own tables.
const ownPrefix = "sluicebox_"

// Store keeps the state of outbox rows in their own tables, and the relay's own in
// tables of the same database whose names begin with sluicebox_. All methods are
// safe for concurrent use.
type Store struct {
	name     string
	holder   string
	takeover time.Duration
	outboxes *outboxes.Set

	claims, outcomes, control, operator, spillSession, replay *link
	tableWaitSession                                          *link         // waits for tables that somebody has locked
	lockSession                                               *link         // asks for the lock; who gets it takes its session
	lockSessionID                                             atomic.Int64  // number of the session that holds, or has lost, the lock; 0 for none
	viewConfig                                                *mysql.Config // of sessions that read

	lookupFirstUntil time.Time // claims look at their rows first until then; so does it
	leaderConn       *conn     // control's session at the last Lead; control's turn guards it

	lifetime *lifetime.Lifetime
	closed   sync.Once
}

// New returns a store. It opens no session.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		name: cfg.Name, holder: store.NewHolder(cfg.Holder), takeover: cfg.TakeoverTimeout,
		outboxes: outboxes.New(cfg.Outboxes), lifetime: lifetime.New(),
	}
	for _, to := range []struct {
		link    **link
		purpose string
		wait    time.Duration
		awake   bool
	}{
		{&s.claims, "claims", claimWait, true},
		{&s.outcomes, "outcomes", outcomeWait, true},
		{&s.tableWaitSession, "tables", outcomeWait, false},
		{&s.control, "control", raiseTimeout, true},
		{&s.operator, "operator", lockWait, false},
		{&s.spillSession, "parking", lockWait, false},
		{&s.replay, "replay", lockWait, false},
		{&s.lockSession, "leader", lockWait, false},
	} {
		url, err := ParseURL(cfg.URL, "sluicebox "+cfg.Name+" "+to.purpose)
		if err != nil {
			return nil, err
		}
		if to.link == &s.claims || to.link == &s.outcomes { // they run scripts
			url.MultiStatements, url.InterpolateParams = true, true
		}
		settings := writeSettings(to.wait)
		if to.link == &s.claims || to.link == &s.outcomes || to.link == &s.tableWaitSession {
			settings["lock_wait_timeout"] = seconds(tableWait)
		}
		*to.link = newLink(url, settings, s.lifetime)
		(*to.link).keepAlive = to.awake
	}
	s.lockSession.check = checkOnePrimary
	views, err := ParseURL(cfg.URL, "sluicebox "+cfg.Name+" view")
	if err != nil {
		return nil, err
	}
	s.viewConfig = views
	return s, nil
}

// Close ends all sessions, also those of open views, and the calls that use them.
// It returns when nothing of the store is left. Calls after it fail.
func (s *Store) Close() {
	s.closed.Do(func() {
		s.lifetime.End()
		for _, l := range []*link{s.claims, s.outcomes, s.control, s.operator, s.spillSession, s.replay, s.tableWaitSession, s.lockSession} {
			l.Close()
		}
		s.lifetime.Wait()
	})
}

// outbox finds a configured outbox.
func (s *Store) outbox(name string) (*store.Outbox, error) { return s.outboxes.Find(name) }

const (
	// lockWait is how long a statement waits for a row that somebody else has locked.
	lockWait = 2 * time.Second
	// raiseTimeout is how long Lead waits at a time for writes of an earlier leader.
	raiseTimeout = time.Second
	// viewTimeout is how long a view's session may be silent, and its reader take over
	// what it was sent.
	viewTimeout = 10 * time.Minute
)

// commonSettings are those of every session, as values in SQL. Texts come as UTF-8
// and times in UTC, whatever the server's own settings say, and a value that does not
// fit its column is an error.
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

// writeSettings are those of a session that writes. The server ends it, and takes
// its transaction back, when its relay has said or taken nothing for
// store.MinLockLease: one that is frozen or cut off keeps neither rows nor the lead.
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

// readSettings give a reader time: it may have to place what it read before it takes
// more.
func readSettings() map[string]string {
	set := commonSettings()
	maps.Copy(set, map[string]string{"wait_timeout": seconds(viewTimeout), "net_write_timeout": seconds(viewTimeout)})
	return set
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
