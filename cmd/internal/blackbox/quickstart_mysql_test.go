package blackbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ofMySQL reports whether a URL is of MySQL or MariaDB.
func ofMySQL(source string) bool {
	return strings.HasPrefix(source, "mysql://") || strings.HasPrefix(source, "mariadb://")
}

// tablesOf lists the tables of a URL's database.
func tablesOf(t *testing.T, source string) (list []string) {
	t.Helper()
	rows, err := servers.OpenMySQL(t, source).QueryContext(context.Background(),
		"SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		list = append(list, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func databaseIsThere(t *testing.T, source, name string) (there bool) {
	t.Helper()
	const look = "SELECT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = ?)"
	if err := servers.OpenMySQL(t, source).QueryRowContext(context.Background(), look, name).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

// awaitMade waits for the configuration of a running quickstart and returns its database, or ""
// if it ended before. It reads the configuration because the server is shared with other
// tests. The database is dropped at the end of the test.
func (q *trial) awaitMade(source string) (name string) {
	q.t.Helper()
	within(q.t, testTimeout, func() string {
		files, _ := filepath.Glob(filepath.Join(q.tmp, "*", "sluicebox.yaml"))
		for _, file := range files {
			text, _ := os.ReadFile(file) // the file may be removed meanwhile
			name = nameIn(text)
		}
		select {
		case <-q.ended:
			return ""
		default:
		}
		if name == "" {
			return "there is no configuration"
		}
		return ""
	})
	if name == "" && q.exitCode() == 0 {
		q.t.Error("no database found in its configuration")
	}
	if name != "" {
		t, server := q.t, regexp.MustCompile(`/\w+\?`).ReplaceAllString(source, "/?") // an account that may create a database may drop it
		t.Cleanup(func() {
			q.kill()
			servers.ExecMySQL(t, server, "DROP DATABASE IF EXISTS "+name)
		})
	}
	return name
}

// withoutNotes removes the notes on leftovers from a quickstart's output. On a shared server
// they may be those of other tests.
func withoutNotes(said string) string {
	return regexp.MustCompile(`An earlier quickstart was kept, or killed, and left database \w+ on this server\. To remove it:
  DROP DATABASE IF EXISTS \w+;\n+`).ReplaceAllString(said, "")
}

// A quickstart lists the leftovers of a killed one on the server, with the statement that
// removes them, whatever database its URL names.
func TestQuickstartAfterAKilledOneOnMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		source := f.Database(t)
		q, _ := killed(t, source)
		if !databaseIsThere(t, source, q.made) {
			t.Fatal("the killed quickstart has left nothing")
		}
		within(t, testTimeout, func() string {
			if n := sessionsOn(t, f, q.made); n > 0 {
				return fmt.Sprintf("%d sessions of the killed quickstart are left", n)
			}
			return ""
		})
		source = f.Database(t)
		next := try(t, source, "--json", "--for", "500ms")
		if code := next.exitCode(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		next.expectNothingLeft(t, source, nil)
		if !databaseIsThere(t, source, q.made) {
			t.Error("the leftover database was removed, want it kept")
		}
		for line := range strings.Lines(next.said()) {
			if statement, ok := strings.CutPrefix(line, "  "); ok && strings.Contains(statement, q.made) {
				servers.ExecMySQL(t, source, statement)
			}
		}
		if databaseIsThere(t, source, q.made) {
			t.Errorf("database %s is there after the statements of:\n%s", q.made, next.said())
		}
	})
}

// sessionsOn counts the sessions that use a database of the shared server.
func sessionsOn(t *testing.T, f servers.Flavour, database string) (n int) {
	t.Helper()
	list := "information_schema.processlist"
	if f == servers.MySQL {
		list = "performance_schema.processlist"
	}
	err := servers.OpenMySQL(t, f.Shared(t)).QueryRowContext(context.Background(), "SELECT count(*) FROM "+list+" WHERE db = ?", database).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// An account without privileges gets the GRANT for a database. With it the quickstart polls
// and prints the GRANT for the log. With that it streams.
func TestQuickstartWithFewRightsOnMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		source := f.Database(t)
		who := nameFor(source)
		servers.ExecMySQL(t, source, "CREATE USER "+who+" IDENTIFIED BY 'canary'")
		t.Cleanup(func() { servers.ExecMySQL(t, f.Shared(t), "DROP USER "+who) })
		own := strings.Replace(source, "root@", who+":canary@", 1)
		ask := func(code int, grants *regexp.Regexp) string {
			q := try(t, own, "--for", "500ms", "--rate", "50")
			if got := q.exitCode(); got != code {
				t.Errorf("exit code %d, want %d", got, code)
			}
			q.expectNothingLeft(t, source, nil)
			all := q.said() + q.stdout.String()
			if strings.Contains(all, "canary") {
				t.Errorf("the password shows:\n%s", all)
			}
			list := grants.FindAllString(all, -1)
			if code == 0 && !strings.Contains(all, "each once") || code != 0 && len(list) != 1 {
				t.Errorf("it grants %q in:\n%s", list, all)
			}
			servers.ExecMySQL(t, source, list...)
			return all
		}
		rights := regexp.MustCompile(`(?m)GRANT CREATE.*;$`)
		ask(78, rights)
		text := ask(0, regexp.MustCompile("GRANT (REPLICATION|BINLOG)[^`]*;"))
		for _, want := range []string{"may not read the database's log", "log unreadable; polling", "REPLICATION SLAVE"} {
			if !strings.Contains(text, want) {
				t.Errorf("summary lacks %q:\n%s", want, text)
			}
		}
		if text = ask(0, rights); strings.Contains(text, "may not read the database's log") {
			t.Errorf("it polls with all rights:\n%s", text)
		}
	})
}

// Without a binlog the quickstart polls, and the summary says why.
func TestQuickstartWithoutABinlog(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		source := f.Start(t, map[string]string{"skip-log-bin": ""}).Database()
		q := try(t, source, "--for", "500ms", "--rate", "50")
		if code := q.exitCode(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		for _, text := range []string{"may not read the database's log", "log_bin is off", "each once"} {
			if !strings.Contains(q.stdout.String(), text) {
				t.Errorf("summary lacks %q", text)
			}
		}
		q.expectNothingLeft(t, source, nil)
	})
}

// With partial_revokes=ON a grant's database name has no wildcards, nor has the printed GRANT.
func TestQuickstartWithPartialRevokes(t *testing.T) {
	t.Parallel()
	server := servers.MySQL.Start(t, map[string]string{"partial-revokes": "ON"})
	servers.ExecMySQL(t, server.URL, "CREATE USER few")
	own := strings.Replace(server.Database(), "root@", "few@", 1)
	_, stderr, code := command(t, nil, "quickstart", "--json", "--for", "500ms", "--source", own)
	grant := regexp.MustCompile(`(?m)GRANT CREATE.* ON \*\.\* .*;$`).FindString(stderr)
	if code != 78 || grant == "" {
		t.Fatalf("exit code %d, want 78: %s", code, stderr)
	}
	servers.ExecMySQL(t, server.URL, grant)
	if _, stderr, code = command(t, nil, "quickstart", "--json", "--for", "500ms", "--source", own); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, stderr)
	}
}
