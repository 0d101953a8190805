package blackbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mysqlHost is a server of a flavour. The relays of each database log in with an account of
// their own, named after the database, so that their sessions differ from the tests'.
func mysqlHost(f servers.Flavour) host {
	return host{
		name: strings.ToLower(string(f)), kind: mysqlKind(),
		database: func(t testing.TB) string {
			database := f.Database(t)
			return account(t, database, "")
		},
		start: func(t testing.TB, settings map[string]string) (string, ownServer) {
			s := f.Start(t, settings)
			return account(t, s.Database(), ""), s
		},
	}
}

// account creates an account for the relays of a database and returns the URL for it. It is
// dropped at the end of the test.
func account(t testing.TB, database, suffix string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	name := accountOf(u) + suffix
	admin := asRoot(t, database)
	servers.ExecMySQL(t, admin, "CREATE USER '"+name+"'@'%'", "GRANT ALL ON *.* TO '"+name+"'@'%'")
	db := servers.OpenMySQL(t, admin)
	t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP USER '"+name+"'@'%'") }) // the server may be gone
	u.User = url.User(name)
	return u.String()
}

// accountOf returns the account of a database's relays. With several relays, each name has a
// suffix.
func accountOf(database *url.URL) string {
	hash := sha256.Sum256([]byte(database.Path))
	return hex.EncodeToString(hash[:8])
}

// relaySessions is the FROM and WHERE of a query for a relay's sessions.
func relaySessions(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		return err.Error()
	}
	return " FROM information_schema.processlist WHERE user LIKE '" + accountOf(u) + "%'"
}

// asRoot returns a database's URL for the tests themselves.
func asRoot(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("root")
	return u.String()
}

// asTest is asRoot with || as the concatenation operator.
func asTest(t testing.TB, database string) string {
	t.Helper()
	return asRoot(t, database) + "&sql_mode=ANSI,STRICT_TRANS_TABLES"
}

func mysqlKind() *kind {
	return &kind{
		// MySQL waits 8 s if a session reads its binlog; see capture/mysql.
		shutdown: 15 * time.Second,
		tables:   ddl.MySQL().FlowCatalyst("outbox_events") + ddl.MySQL().FlowCatalyst("outbox_dispatch_jobs"), truth: mysqlTruth, messages: ddl.MySQL().Messages(), copyOfMessages: mysqlCopyOfMessages,
		numbers: `(SELECT 1000 * a.n + b.n AS i FROM digits a, digits b WHERE b.n < 1000
			AND a.n BETWEEN %[1]d DIV 1000 AND %[2]d DIV 1000 AND 1000 * a.n + b.n BETWEEN %[1]d AND %[2]d) numbers`,
		asText: "CAST(%s AS CHAR)", n: "CAST(json_value(payload, '$.n') AS SIGNED)",
		object: `CREATE TRIGGER object BEFORE UPDATE ON outbox_events FOR EACH ROW
			IF NEW.id = '%s' AND NEW.status = 'COMPLETED' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF`,
		unobject: "DROP TRIGGER object", like: "CREATE TABLE %[1]s LIKE %[2]s",
		audit:    mysqlAudit,
		writes:   mysqlWrites,
		business: "CREATE TABLE business (n text)",
		spilled:  "sluicebox.spilled", checkpoints: "sluicebox.record",
		checkpoint: "(SELECT json_value(body, '$.position') AS position FROM sluicebox.record WHERE record_key = 'checkpoint') AS c",
		sessions:   func(database string) string { return "SELECT count(*)" + relaySessions(database) },
		waiting:    "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id() AND info LIKE '%' || $1 || '%'",
		end: func(t testing.TB, s *scene) {
			t.Helper()
			ids, err := s.conn.texts("SELECT id" + relaySessions(s.database))
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				_, _ = s.conn.exec("KILL " + id) // it may have ended by itself
			}
		},
		as: func(t testing.TB, database, who string) (string, string) {
			url := account(t, asRoot(t, database), "_"+who)
			return url, strings.Split(strings.TrimPrefix(url[strings.Index(url, "://"):], "://"), "@")[0]
		},
		run: func(t testing.TB, database string, scripts ...string) {
			t.Helper()
			servers.ExecMySQL(t, asTest(t, database), scripts...)
		},
		pool: func(t testing.TB, database string) *sql.DB {
			t.Helper()
			return servers.OpenMySQL(t, asTest(t, database))
		},
		write: clients,
	}
}

const mysqlCopyOfMessages = `
CREATE TABLE outbox_messages_copy (id varchar(26) PRIMARY KEY, message_group varchar(255));
CREATE TRIGGER keep AFTER INSERT ON outbox_messages FOR EACH ROW INSERT INTO outbox_messages_copy VALUES (NEW.id, NEW.message_group);
`

const mysqlTruth = `
CREATE TABLE digits (n int PRIMARY KEY);
INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
INSERT INTO digits SELECT 10 * a.n + b.n FROM digits a, digits b WHERE a.n > 0;
INSERT INTO digits SELECT 100 * a.n + b.n FROM digits a, digits b WHERE a.n > 0;
CREATE TABLE truth (outbox varchar(20), grp int, n bigint NOT NULL DEFAULT 0, PRIMARY KEY (outbox, grp));
INSERT INTO truth (outbox, grp) SELECT o, n FROM (SELECT 'events' o UNION SELECT 'jobs' UNION SELECT 'messages') outboxes, digits WHERE n BETWEEN 1 AND 200;
`

const mysqlAudit = `
CREATE TABLE audit (n bigint AUTO_INCREMENT PRIMARY KEY, what varchar(40), id varchar(26), status varchar(20), who varchar(40), epoch bigint, at timestamp(6) DEFAULT CURRENT_TIMESTAMP(6));
CREATE TRIGGER note_event AFTER UPDATE ON outbox_events FOR EACH ROW
  INSERT INTO audit (what, id, status, who, epoch) SELECT 'outbox_events', NEW.id, NEW.status, substring_index(user(), '@', 1), max(epoch) FROM sluicebox_leader;
CREATE TRIGGER note_job AFTER UPDATE ON outbox_dispatch_jobs FOR EACH ROW
  INSERT INTO audit (what, id, status, who, epoch) SELECT 'outbox_dispatch_jobs', NEW.id, NEW.status, substring_index(user(), '@', 1), max(epoch) FROM sluicebox_leader;
CREATE TRIGGER note_checkpoint AFTER UPDATE ON sluicebox_record FOR EACH ROW
  INSERT INTO audit (what, who, epoch) SELECT 'checkpoint', substring_index(user(), '@', 1), l.epoch
  FROM (SELECT max(epoch) AS epoch FROM sluicebox_leader) AS l WHERE NEW.record_key = 'checkpoint';
CREATE TRIGGER note_first_checkpoint AFTER INSERT ON sluicebox_record FOR EACH ROW
  INSERT INTO audit (what, who, epoch) SELECT 'checkpoint', substring_index(user(), '@', 1), l.epoch
  FROM (SELECT max(epoch) AS epoch FROM sluicebox_leader) AS l WHERE NEW.record_key = 'checkpoint';
`

const mysqlWrites = `
CREATE TABLE writes (id varchar(26), status varchar(20));
CREATE TRIGGER note_event_write AFTER UPDATE ON outbox_events FOR EACH ROW INSERT INTO writes VALUES (NEW.id, NEW.status);
CREATE TRIGGER note_job_write AFTER UPDATE ON outbox_dispatch_jobs FOR EACH ROW INSERT INTO writes VALUES (NEW.id, NEW.status);
`
