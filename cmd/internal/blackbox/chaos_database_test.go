package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"
)

// freezer is a server that can be frozen.
type freezer interface {
	Freeze()
	Thaw()
}

// Hosts that a kind applies to.
func onSQL(name string) bool      { return hasServer(name) && !onMongo(name) }
func hasServer(name string) bool  { return name != sqliteName }
func onPostgres(name string) bool { return strings.HasPrefix(name, "pg") }
func onMySQL(name string) bool    { return onSQL(name) && !onPostgres(name) }
func onMongo(name string) bool    { return name == "mongo" }

// databaseKinds are faults of the database's server.
func databaseKinds() []chaosKind {
	const short, long = 300 * time.Millisecond, 3 * time.Second
	stop := func(mode string) func(c *chaos, _ *rand.Rand) func() {
		return func(c *chaos, _ *rand.Rand) func() {
			c.server.Stop(mode)
			return func() { c.server.Restart(nil) }
		}
	}
	frozen := func(c *chaos, _ *rand.Rand) func() {
		c.frozen.Freeze()
		return c.frozen.Thaw
	}
	return []chaosKind{
		{name: "database crashes", least: short, most: long, on: hasServer, inject: stop("immediate")},
		{name: "database shuts down", least: short, most: long, on: hasServer, inject: stop("fast")},
		{name: "database frozen", least: short, most: 7 * time.Second, on: hasServer, inject: frozen},
		{name: "relays' sessions ended", least: 0, most: short, on: onSQL, inject: func(c *chaos, _ *rand.Rand) func() {
			c.kind.end(c.t, c.scene)
			return func() {}
		}},
		{name: "log reader ended", least: 0, most: short, on: onSQL, inject: func(c *chaos, _ *rand.Rand) func() {
			c.endReader()
			return func() {}
		}},
		{name: "slot dropped", least: 0, most: short, on: onPostgres, inject: func(c *chaos, _ *rand.Rand) func() {
			c.dropSlot(nameFor(c.database))
			return func() {}
		}},
		{name: "publication dropped", least: 0, most: short, on: onPostgres, inject: func(c *chaos, _ *rand.Rand) func() {
			c.exec("DROP PUBLICATION IF EXISTS " + nameFor(c.database))
			return func() {}
		}},
		{name: "binlog purged while both are down", least: short, most: long, on: onMySQL, inject: func(c *chaos, _ *rand.Rand) func() {
			a, b := c.relays[0], c.relays[1]
			upA, upB := a.down(a.kill), b.down(b.kill)
			return func() {
				c.kind.end(c.t, c.scene)
				c.purge()
				upA(c.t)
				upB(c.t)
			}
		}},
		{name: "table locked", least: short, most: 5 * time.Second, on: onSQL, inject: func(c *chaos, r *rand.Rand) func() {
			return c.lockTable(aTable(r))
		}},
		{name: "rows locked by others", least: short, most: 5 * time.Second, on: onSQL, inject: func(c *chaos, r *rand.Rand) func() {
			return c.lockRows(aTable(r) + " WHERE status <> 'COMPLETED'")
		}},
		{name: "column added and dropped", least: short, most: long, on: onSQL, inject: func(c *chaos, r *rand.Rand) func() {
			table := aTable(r)
			c.alter("ALTER TABLE " + table + " ADD COLUMN extra text")
			return func() { c.alter("ALTER TABLE " + table + " DROP COLUMN extra") }
		}},
		{name: "column retyped and back", least: short, most: long, on: onSQL, inject: func(c *chaos, r *rand.Rand) func() {
			table, to := aTable(r), "ALTER TABLE %s ALTER COLUMN message_group TYPE varchar(%d)"
			if !c.kind.postgres {
				to = "ALTER TABLE %s MODIFY message_group varchar(%d)"
			}
			c.alter(fmt.Sprintf(to, table, 300))
			return func() { c.alter(fmt.Sprintf(to, table, 255)) }
		}},
		{name: "column renamed and back", least: short, most: long, on: onSQL, inject: func(c *chaos, r *rand.Rand) func() {
			table := aTable(r)
			c.pause() // the services would fail
			c.alter("ALTER TABLE " + table + " RENAME COLUMN error_message TO reason")
			c.resume()
			return func() { c.alter("ALTER TABLE " + table + " RENAME COLUMN reason TO error_message") }
		}},
		{name: "outcomes refused by a trigger", least: short, most: long, on: onSQL, inject: func(c *chaos, _ *rand.Rand) func() {
			refuse, allow := refusal(c.kind.postgres)
			c.alter(refuse...)
			return func() { c.alter(allow...) }
		}},
	}
}

// chaosRole is the relays' role in PostgreSQL, because a superuser needs no grants. It owns the tables.
const chaosRole = "relay"

// chaosAccount returns the database's URL for the relays.
func chaosAccount(s *scene) string {
	if !s.kind.postgres {
		return s.database
	}
	s.exec("CREATE ROLE "+chaosRole+" LOGIN REPLICATION", "GRANT CREATE ON DATABASE postgres TO "+chaosRole, "GRANT ALL ON SCHEMA public TO "+chaosRole)
	for _, table := range seedCollections() {
		s.exec("ALTER TABLE " + table + " OWNER TO " + chaosRole)
	}
	return strings.Replace(s.database, "postgres@", chaosRole+"@", 1)
}

// grantKinds take a right from the relays and give it back. New sessions notice.
func grantKinds() []chaosKind {
	kind := func(name string, postgres, mysql [2]string) chaosKind {
		return chaosKind{name: name, least: time.Second, most: 4 * time.Second, on: onSQL, inject: func(c *chaos, _ *rand.Rand) func() {
			change := postgres
			if !c.kind.postgres {
				u, err := url.Parse(c.database)
				if err != nil {
					c.t.Fatal(err)
				}
				change = [2]string{fmt.Sprintf(mysql[0], u.User.Username()), fmt.Sprintf(mysql[1], u.User.Username())}
			}
			c.alter(change[0])
			c.kind.end(c.t, c.scene)
			return func() {
				c.alter(change[1])
				c.kind.end(c.t, c.scene)
			}
		}}
	}
	return []chaosKind{
		kind("grant to update taken and given back", [2]string{"REVOKE UPDATE ON outbox_events FROM " + chaosRole, "GRANT UPDATE ON outbox_events TO " + chaosRole},
			[2]string{"REVOKE UPDATE ON *.* FROM '%s'@'%%'", "GRANT UPDATE ON *.* TO '%s'@'%%'"}),
		kind("right to replicate taken and given back", [2]string{"ALTER ROLE " + chaosRole + " NOREPLICATION", "ALTER ROLE " + chaosRole + " REPLICATION"},
			[2]string{"REVOKE REPLICATION SLAVE ON *.* FROM '%s'@'%%'", "GRANT REPLICATION SLAVE ON *.* TO '%s'@'%%'"}),
	}
}

// refusal makes the events table refuse every COMPLETED of ids that end in 7.
func refusal(postgres bool) (refuse, allow []string) {
	if postgres {
		return []string{`CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF NEW.id LIKE ''%7'' AND NEW.status = ''COMPLETED'' THEN RAISE ''not now''; END IF; RETURN NEW; END'`,
				"CREATE TRIGGER refuse BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION refuse()"},
			[]string{"DROP TRIGGER refuse ON outbox_events"}
	}
	return []string{`CREATE TRIGGER refuse BEFORE UPDATE ON outbox_events FOR EACH ROW
			IF NEW.id LIKE '%7' AND NEW.status = 'COMPLETED' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'; END IF`},
		[]string{"DROP TRIGGER refuse"}
}

func aTable(r *rand.Rand) string { return seedCollections()[r.IntN(2)] }

// alter changes a schema, and tries again while the relay or the writers are in its way.
func (c *chaos) alter(statements ...string) {
	c.t.Helper()
	for _, text := range statements {
		within(c.t, testTimeout, func() string {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := c.conn.ExecContext(ctx, text)
			if err != nil && (strings.Contains(err.Error(), "already exists") || strings.Contains(err.Error(), "does not exist")) {
				return ""
			}
			return failure(err)
		})
	}
}

// endReader ends the session that reads the log.
func (c *chaos) endReader() {
	c.t.Helper()
	if c.kind.postgres {
		_, _ = c.conn.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name LIKE 'sluicebox %'")
		return
	}
	ids, err := c.conn.texts("SELECT id" + relaySessions(c.database) + " AND command LIKE 'Binlog Dump%'")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, id := range ids {
		_, _ = c.conn.exec("KILL " + id) // it may have ended
	}
}

// lockRows locks rows that are free.
func (c *chaos) lockRows(where string) (unlock func()) {
	c.t.Helper()
	ctx := context.Background()
	tx, err := c.conn.BeginTx(ctx, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	rows, err := tx.QueryContext(ctx, "SELECT id FROM "+where+" LIMIT 200 FOR UPDATE SKIP LOCKED")
	if err != nil {
		c.t.Fatal(err)
	}
	for rows.Next() {
	}
	_ = rows.Close()
	return func() { _ = tx.Rollback() } // the server may have ended it
}
