package quickstart

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func eachFlavour(t *testing.T, test func(t *testing.T, server string)) {
	t.Parallel()
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			test(t, f.Shared(t))
		})
	}
}

// newTestDatabase returns a database with a new name, which the test's end drops.
func newTestDatabase(t *testing.T, server string) (*mysqlDatabase, databaseInfo) {
	t.Helper()
	m, at, err := newMySQL(server, demodb.NewName(namePrefix))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { servers.ExecMySQL(t, server, mysqlRemoval(m.name)...) })
	return m, at
}

func databaseExists(t *testing.T, server, database string) (there bool) {
	t.Helper()
	const look = "SELECT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = ?)"
	if err := servers.OpenMySQL(t, server).QueryRowContext(t.Context(), look, database).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

// straggler opens a session and runs statements in it.
func straggler(t *testing.T, url string, statements ...string) *sql.Conn {
	t.Helper()
	conn, err := servers.OpenMySQL(t, url).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // cleanUp may have killed it
	for _, statement := range statements {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// TestMySQLRemovesUnderASession: cleanUp kills sessions that the server still has.
func TestMySQLRemovesUnderASession(t *testing.T) {
	eachFlavour(t, func(t *testing.T, server string) {
		m, at := newTestDatabase(t, server)
		m.endTimeout = time.Second
		if _, err := m.setUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		relay := straggler(t, at.url, "BEGIN", "INSERT INTO outbox_events "+eventColumns+" VALUES ('1', 'EVENT', 'g', '{}', 'PENDING', NOW(6))")
		maker := straggler(t, server)
		waits := make(chan bool, 1)
		go func() { // it acquires the lock after setUp's session, and keeps it
			var got bool
			err := maker.QueryRowContext(context.WithoutCancel(t.Context()), "SELECT GET_LOCK('"+m.name+"', 15)").Scan(&got)
			waits <- got && err == nil
		}()
		awaitWaiting(t, server, m.name)
		if err := m.cleanUp(t.Context(), false); err != nil {
			t.Error(err)
		}
		if databaseExists(t, server, m.name) {
			t.Error("the database is still there")
		}
		if !<-waits {
			t.Error("nobody else had the lock")
		}
		for who, conn := range map[string]*sql.Conn{"relay": relay, "maker": maker} {
			if err := conn.PingContext(t.Context()); err == nil {
				t.Errorf("the session of the %s goes on", who)
			}
		}
	})
}

// awaitWaiting waits until a session waits for the lock of a name.
func awaitWaiting(t *testing.T, server, name string) {
	t.Helper()
	db := servers.OpenMySQL(t, server)
	for deadline := time.Now().Add(callTimeout); ; {
		rows, err := db.QueryContext(t.Context(), "SHOW FULL PROCESSLIST")
		if err != nil {
			t.Fatal(err)
		}
		var id, user, host, database, command, since, state, info, rest sql.NullString
		columns, _ := rows.Columns()
		waits := false
		for rows.Next() {
			into := []any{&id, &user, &host, &database, &command, &since, &state, &info, &rest}
			if err := rows.Scan(into[:len(columns)]...); err != nil {
				t.Fatal(err)
			}
			waits = waits || state.String == "User lock" && strings.Contains(info.String, name)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		if waits {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits for the lock %s", name)
		}
	}
}

// TestMySQLSetUpInterrupted cancels setUp later and later, until one signal came in the
// middle and one after the end. Nothing may stay.
func TestMySQLSetUpInterrupted(t *testing.T) {
	eachFlavour(t, func(t *testing.T, server string) {
		midway, done := false, false
		for after := time.Duration(0); !midway || !done; {
			m, _ := newTestDatabase(t, server)
			ctx, cancel := context.WithTimeout(t.Context(), after)
			_, err := m.setUp(ctx)
			cancel()
			if err := m.cleanUp(t.Context(), false); err != nil {
				t.Fatalf("set up for %s: %v; %v", after, err, m.created)
			}
			if databaseExists(t, server, m.name) {
				t.Errorf("interrupted after %s (%v), the database stays", after, err)
			}
			if err == nil {
				done, after = true, after/2
				continue
			}
			midway = midway || m.created
			after += 2*time.Millisecond + after/8
		}
	})
}

// TestMySQLTakesNothingAway: cleanUp keeps an existing database of the same name.
func TestMySQLTakesNothingAway(t *testing.T) {
	eachFlavour(t, func(t *testing.T, server string) {
		m, _ := newTestDatabase(t, server)
		servers.ExecMySQL(t, server, "CREATE DATABASE "+m.name, "CREATE TABLE "+m.name+".orders (id INT)")
		if _, err := m.setUp(t.Context()); err == nil || !strings.Contains(err.Error(), "create database "+m.name) {
			t.Errorf("set up: %v", err)
		}
		if err := m.cleanUp(t.Context(), false); err != nil {
			t.Error(err)
		}
		if !databaseExists(t, server, m.name) {
			t.Error("a database is gone that somebody else has made")
		}
	})
}

// TestMySQLLeftovers: only databases that no session uses are listed.
func TestMySQLLeftovers(t *testing.T) {
	eachFlavour(t, func(t *testing.T, server string) {
		kept, _ := newTestDatabase(t, server)
		used, at := newTestDatabase(t, server)
		lives, _ := newTestDatabase(t, server)
		for _, m := range []*mysqlDatabase{kept, used, lives} {
			if _, err := m.setUp(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range []*mysqlDatabase{kept, used} {
			if err := m.cleanUp(t.Context(), true); err != nil {
				t.Error(err)
			}
		}
		straggler(t, at.url)
		unused(t, lives, kept.name)
		next, _ := newTestDatabase(t, server)
		note, err := next.setUp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{kept.name: true, used.name: false, lives.name: false, next.name: false} {
			if got := strings.Contains(note, "left database "+name+" on this server. To remove it:\n  DROP DATABASE IF EXISTS "+name+";\n"); got != want {
				t.Errorf("%s is named: %t, want %t, in:\n%s", name, got, want, note)
			}
		}
		for _, m := range []*mysqlDatabase{lives, next} {
			if err := m.cleanUp(t.Context(), false); err != nil {
				t.Error(err)
			}
		}
	})
}

// unused waits until the server has noticed that no session uses a database.
func unused(t *testing.T, m *mysqlDatabase, name string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; <-time.After(10 * time.Millisecond) {
		using, err := m.lock.Users(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(using[name]) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("database %s is in use: %v", name, using[name])
		}
	}
}

// TestMySQLRights revokes each right in turn. Without it nothing is created that could not
// be used or removed, and the named statement grants it.
func TestMySQLRights(t *testing.T) {
	eachFlavour(t, func(t *testing.T, server string) {
		name := demodb.NewName(namePrefix)
		who := "'u@" + name[len(namePrefix):] + "'@'%'"
		servers.ExecMySQL(t, server, "CREATE USER "+who)
		t.Cleanup(func() { servers.ExecMySQL(t, server, "DROP USER "+who) })
		own := strings.Replace(server, "root@", "u%40"+name[len(namePrefix):]+"@", 1)
		for _, missing := range []string{"ALL", "CREATE", "DROP", "SELECT", "INSERT", "UPDATE", "DELETE"} {
			if missing != "ALL" {
				servers.ExecMySQL(t, server, "REVOKE "+missing+" ON `sluicebox\\_quickstart\\_%`.* FROM "+who)
			}
			m, _ := newTestDatabase(t, own)
			_, err := m.setUp(t.Context())
			var setup *store.SetupError
			if !errors.As(err, &setup) || m.created {
				t.Fatalf("without %s: %v", missing, err)
			}
			_, grant, _ := strings.Cut(setup.Remedy, "\n")
			servers.ExecMySQL(t, server, grant)
			if err := m.cleanUp(t.Context(), false); err != nil {
				t.Error(err)
			}
		}
		m, _ := newTestDatabase(t, own)
		if _, err := m.setUp(t.Context()); err != nil {
			t.Error(err)
		}
		if err := m.cleanUp(t.Context(), false); err != nil {
			t.Error(err)
		}
		if databaseExists(t, server, m.name) {
			t.Error("the database stays")
		}
	})
}

func TestMySQLClient(t *testing.T) {
	const file = "/etc/ssl/c.pem"
	for url, want := range map[string]string{
		"mysql://u@db/shop?tls=false":                                         "mysql --host=db --protocol=TCP --user=u --ssl-mode=DISABLED",
		"MYSQL://u:canary@db:3307/shop":                                       "mysql --host=db --protocol=TCP --port=3307 --user=u --password --ssl-mode=REQUIRED",
		"mysql://u@db/shop?tls-ca=" + file:                                    "mysql --host=db --protocol=TCP --user=u --ssl-mode=VERIFY_IDENTITY --ssl-ca=" + file,
		"mysql://u@db/s?tls-server-name=x&tls-ca=" + file:                     "mysql --host=db --protocol=TCP --user=u --ssl-mode=VERIFY_CA --ssl-ca=" + file,
		"mysql://u@db/s?allow-cleartext-passwords=true":                       "mysql --host=db --protocol=TCP --user=u --ssl-mode=REQUIRED --enable-cleartext-plugin",
		"mysql://u@localhost/s?socket=/run/s&tls=false":                       "mysql --socket=/run/s --user=u --ssl-mode=DISABLED",
		"mysql://u@/s?socket=/run/my%20s":                                     "mysql '--socket=/run/my s' --user=u --ssl-mode=DISABLED",
		"mysql://u@[::1]:1/s?tls=preferred":                                   "mysql --host=::1 --protocol=TCP --port=1 --user=u --ssl-mode=PREFERRED",
		"mariadb://u@db/shop?tls=false":                                       "mariadb --host=db --protocol=TCP --user=u --skip-ssl",
		"mariadb://u%27s@db/shop":                                             `mariadb --host=db --protocol=TCP '--user=u'\''s' --ssl --ssl-verify-server-cert`,
		"mariadb://u@db/shop?tls=skip-verify":                                 "mariadb --host=db --protocol=TCP --user=u --ssl --disable-ssl-verify-server-cert",
		"mariadb://u@db/shop?tls=preferred":                                   "mariadb --host=db --protocol=TCP --user=u --disable-ssl-verify-server-cert",
		"mariadb://u:canary@db?allow-cleartext-passwords=true&tls-ca=" + file: "mariadb --host=db --protocol=TCP --user=u --password --ssl --ssl-verify-server-cert --ssl-ca=" + file,
	} {
		u := mustParse(t, url)
		if got := mysqlClient(u); got != want {
			t.Errorf("%s: got  %s\nwant %s", url, got, want)
		}
	}
}
