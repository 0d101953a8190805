package blackbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const (
	fromTableGroups = 4
	fromTableRows   = 36
	// fromTableBacklog are the rows that are inserted before the relay starts.
	fromTableBacklog = 12
)

// fromTableHead is the part of the configuration that init --from-table does not print.
const fromTableHead = `
name: %s
source: {mode: stream, url: %q}
admin: {listen: %s}
`

// A table as a team has written it needs no configuration by hand: init --from-table prints it,
// the receiver's address is put in, and the keys that the output marks DECIDE are answered. Then
// all rows arrive, in order per group, and each has the state of a delivered row. By hand:
//
//	SLUICEBOX_TEST_VERSIONS=all go test -v -run TestInitFromTable ./cmd/internal/blackbox
func TestInitFromTable(t *testing.T) {
	t.Parallel()
	for _, c := range everydayTables() {
		t.Run(c.on+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			onEverydayDatabase(t, c.on, func(t *testing.T, source string, db *sql.DB) { c.check(t, source, db) })
		})
	}
}

// onEverydayDatabase runs a test in an empty database of a kind.
func onEverydayDatabase(t *testing.T, on string, test func(t *testing.T, source string, db *sql.DB)) {
	t.Helper()
	if on == "sqlite" {
		path := filepath.Join(t.TempDir(), "shop.db")
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		test(t, "sqlite://"+path, db)
		return
	}
	var all []host
	if on == "postgres" {
		for _, version := range servers.Spread(t, servers.Versions()) {
			all = append(all, postgresHost(version))
		}
	}
	for _, f := range servers.Chosen(servers.Flavours()) {
		if strings.EqualFold(string(f), on) {
			all = append(all, mysqlHost(f))
		}
	}
	onHosts(t, all, func(t *testing.T, h host) {
		source := h.database(t)
		test(t, source, connect(t, source).DB)
	})
}

// check runs one table.
func (c *everydayTable) check(t *testing.T, source string, db *sql.DB) {
	t.Helper()
	for statement := range strings.SplitSeq(c.ddl, ";") {
		run(t, db, statement)
	}
	if c.before != "" {
		run(t, db, c.before)
	}
	insert := func(from, to int) {
		for n := from; n <= to; n++ {
			run(t, db, c.statement(n))
		}
	}
	insert(1, fromTableBacklog)
	to := sinktest.NewReceiver(t)
	proposal := proposalFor(t, source, c.table, c.expect, c.answers, to)
	r := start(t, fmt.Sprintf(fromTableHead, nameFor(source), source, adminKey)+proposal)
	arrive(t, to, fromTableBacklog)
	insert(fromTableBacklog+1, fromTableRows)
	arrive(t, to, fromTableRows)
	checkEverydayOrder(t, to, proposal)
	within(t, testTimeout, func() string {
		var open, all int
		where := strconv.Itoa(fromTableRows)
		if c.before != "" {
			where = strconv.Itoa(fromTableRows + 1)
		}
		table := strings.ReplaceAll(tableIn(c.ddl), "IF NOT EXISTS ", "")
		if err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM "+table+" WHERE "+c.open).Scan(&open); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM "+table).Scan(&all); err != nil {
			t.Fatal(err)
		}
		if open > 0 || strconv.Itoa(all) != where {
			return fmt.Sprintf("%d rows are not as after a delivery, of %d, want 0 of %s", open, all, where)
		}
		return ""
	})
	expectStop(t, r)
}

var createdTable = regexp.MustCompile(`CREATE TABLE ("?[\w.]+"?) \(`)

// tableIn returns the table that DDL creates first, as SQL names it.
func tableIn(ddl string) string { return createdTable.FindStringSubmatch(ddl)[1] }

// statement returns the statement that inserts a row.
func (c *everydayTable) statement(n int) string {
	payload := everydayPayload(n)
	return strings.NewReplacer(
		"{n}", strconv.Itoa(n), "{g}", strconv.Itoa(n%fromTableGroups),
		"{payload}", "'"+payload+"'", "{hex}", hex.EncodeToString([]byte(payload)),
	).Replace(c.insert)
}

func everydayPayload(n int) string {
	return fmt.Sprintf(`{"Group": "%d", "N": %d}`, n%fromTableGroups, n)
}

// decision matches a line that is marked, and captures its key.
var decision = regexp.MustCompile(`(?m)^( *(?:- )?([\w-]+): ).*# DECIDE: .*$`)

// proposalFor returns what init --from-table prints, with the receiver's address and the
// answers in place of the lines that it marks.
func proposalFor(t *testing.T, source, table string, expect []string, answers map[string]string, to *sinktest.Receiver) string {
	t.Helper()
	out, errs, code := command(t, nil, "init", "--from-table", table, "--source", source)
	if code != 0 {
		t.Fatalf("init --from-table: exit code %d, want 0\n%s%s", code, out, errs)
	}
	t.Logf("init --from-table %s\n%s", table, out)
	for _, line := range expect {
		if !strings.Contains(out, line) {
			t.Errorf("the proposal lacks %q", line)
		}
	}
	var asked []string
	proposal := decision.ReplaceAllStringFunc(out, func(line string) string {
		m := decision.FindStringSubmatch(line)
		if m[2] == "url" {
			return m[1] + strconv.Quote(to.URL())
		}
		asked = append(asked, m[2])
		return m[1] + answers[m[2]]
	})
	slices.Sort(asked)
	var want []string
	for key := range answers {
		want = append(want, key)
	}
	slices.Sort(want)
	if !slices.Equal(asked, want) {
		t.Errorf("the proposal marks the keys %q beside the url, want %q", asked, want)
	}
	return proposal
}

// checkEverydayOrder expects each row once, and those of a group in the order of their numbers.
func checkEverydayOrder(t *testing.T, to *sinktest.Receiver, proposal string) {
	t.Helper()
	last, seen := map[string]int{}, map[string]bool{}
	for _, got := range to.Accepted() {
		var row struct {
			Group string
			N     int
		}
		if err := json.Unmarshal(got.Payload, &row); err != nil {
			t.Fatalf("payload %q: %v", got.Payload, err)
		}
		if seen[got.ID] {
			continue
		}
		seen[got.ID] = true
		if row.N <= last[row.Group] {
			t.Errorf("group %s: row %d arrived after row %d, with\n%s", row.Group, row.N, last[row.Group], proposal)
		}
		last[row.Group] = row.N
	}
	if len(last) != fromTableGroups {
		t.Errorf("%d groups arrived, want %d", len(last), fromTableGroups)
	}
}

// On MongoDB a sample of the documents shows what a table's description does elsewhere.
func TestMongoInitFromTable(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	source := servers.Mongo(t)
	db := servers.OpenMongo(t, source)
	insert := func(from, to int) {
		for n := from; n <= to; n++ {
			document := bson.M{
				"orderId": fmt.Sprint("o", n%fromTableGroups), "type": "OrderPaid", "status": "new", "attempts": 0,
				"payload": bson.D{{Key: "Group", Value: fmt.Sprint(n % fromTableGroups)}, {Key: "N", Value: n}}, "createdAt": bson.NewDateTimeFromTime(time.Now()),
			}
			if _, err := db.Collection("outbox").InsertOne(t.Context(), document); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := db.Collection("outbox").InsertOne(t.Context(), bson.M{"orderId": "o0", "type": "OrderPaid", "status": "sent", "payload": bson.M{}, "createdAt": bson.NewDateTimeFromTime(time.Now()), "sentAt": bson.NewDateTimeFromTime(time.Now())}); err != nil {
		t.Fatal(err)
	}
	insert(1, fromTableBacklog)
	to := sinktest.NewReceiver(t)
	proposal := proposalFor(t, source, "outbox", []string{fmt.Sprintf("from a sample of %d documents.", fromTableBacklog+1), "id: _id ", "group: orderId ", "type: type ", "time: createdAt ", "pending: new ", "completed: sent ", "delivered: sentAt ", "retry-count: attempts "}, nil, to)
	r := start(t, fmt.Sprintf(fromTableHead, nameFor(source), source, adminKey)+proposal)
	arrive(t, to, fromTableBacklog)
	insert(fromTableBacklog+1, fromTableRows)
	arrive(t, to, fromTableRows)
	checkEverydayOrder(t, to, proposal)
	within(t, testTimeout, func() string {
		n, err := db.Collection("outbox").CountDocuments(t.Context(), bson.M{"status": "sent", "sentAt": bson.M{"$type": "date"}})
		if err != nil || n != fromTableRows+1 {
			return fmt.Sprintf("%d documents are as after a delivery, want %d: %v", n, fromTableRows+1, err)
		}
		return ""
	})
	expectStop(t, r)
}

// A table that cannot be described is refused with the reason and the way out.
func TestInitFromTableFaults(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, source, table string, want ...string) {
		t.Helper()
		out, errs, code := command(t, nil, "init", "--from-table", table, "--source", source)
		if code != 78 || out != "" {
			t.Errorf("%s: exit code %d, want 78 and no proposal\n%s%s", table, code, out, errs)
		}
		for _, part := range want {
			if !strings.Contains(errs, part) {
				t.Errorf("%s: the error lacks %q:\n%s", table, part, errs)
			}
		}
	}
	t.Run("sqlite", func(t *testing.T) {
		onEverydayDatabase(t, "sqlite", func(t *testing.T, source string, db *sql.DB) {
			run(t, db, "CREATE TABLE outbox (id INTEGER PRIMARY KEY, payload TEXT)")
			run(t, db, "CREATE VIEW seen AS SELECT * FROM outbox")
			refused(t, source, "outbux", "no table \"outbux\"", "tables: outbox")
			refused(t, source, "seen", "is a view")
			refused(t, source+".absent", "outbox", "does not exist")
		})
	})
	t.Run("postgres", func(t *testing.T) {
		onEverydayDatabase(t, "postgres", func(t *testing.T, source string, db *sql.DB) {
			run(t, db, "CREATE TABLE outbox (id bigint PRIMARY KEY, payload jsonb)")
			run(t, db, "CREATE VIEW seen AS SELECT * FROM outbox")
			refused(t, source, "outbux", "does not exist", "visible tables: public.outbox")
			refused(t, source, "seen", "is not a table", "the services insert into")
			role := strings.ReplaceAll(nameFor(source), "t", "r")
			run(t, db, "CREATE ROLE "+role+" LOGIN")
			t.Cleanup(func() { run(t, db, "DROP OWNED BY "+role); run(t, db, "DROP ROLE "+role) })
			refused(t, asRole(t, source, role), "outbox", "lacks SELECT on \"outbox\"", `GRANT SELECT ON "outbox" TO "`+role+`";`)
			run(t, db, "CREATE SCHEMA closed")
			run(t, db, "CREATE TABLE closed.outbox (id bigint PRIMARY KEY, payload jsonb)")
			refused(t, asRole(t, source, role), "closed.outbox", `lacks USAGE on the schema "closed"`, `GRANT USAGE ON SCHEMA "closed" TO "`+role+`";`)
		})
	})
	for _, on := range []string{"mysql", "mariadb"} {
		t.Run(on, func(t *testing.T) {
			onEverydayDatabase(t, on, func(t *testing.T, source string, db *sql.DB) {
				run(t, db, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload JSON)")
				run(t, db, "CREATE VIEW seen AS SELECT * FROM outbox")
				refused(t, source, "outbux", "no table", "visible tables: outbox", "the account's rights")
				refused(t, source, "seen", "is not a table")
			})
		})
	}
	t.Run("mongo", func(t *testing.T) {
		chooseMongo(t)
		source := servers.Mongo(t)
		db := servers.OpenMongo(t, source)
		if err := db.CreateCollection(t.Context(), "outbox"); err != nil {
			t.Fatal(err)
		}
		if err := db.CreateView(t.Context(), "seen", "outbox", bson.A{}); err != nil {
			t.Fatal(err)
		}
		refused(t, source, "outbux", "does not exist", "the database has outbox")
		refused(t, source, "outbox", "is empty", "let a service insert a document first")
		refused(t, source, "seen", "is a view")
	})
}

// asRole returns the URL of a database for a role without a password.
func asRole(t *testing.T, source, role string) string {
	t.Helper()
	u, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// While another session locks a table, its description comes from the catalog, within seconds.
// PostgreSQL's catalog is locked with it.
func TestInitFromTableLocked(t *testing.T) {
	t.Parallel()
	proposed := []string{"# No rows were read: ", "pending: fresh # sure: the default of the column\n", "completed: completed # DECIDE: an assumption"}
	for _, tt := range []struct {
		on, lock string
		code     int
		want     []string
	}{
		{"postgres", "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE", 78, []string{`another session locks "outbox"`, "pg_terminate_backend"}},
		{"mysql", "LOCK TABLES outbox WRITE", 0, proposed},
		{"mariadb", "LOCK TABLES outbox WRITE", 0, proposed},
	} {
		t.Run(tt.on, func(t *testing.T) {
			t.Parallel()
			onEverydayDatabase(t, tt.on, func(t *testing.T, source string, db *sql.DB) {
				run(t, db, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload TEXT NOT NULL, status VARCHAR(9) NOT NULL DEFAULT 'fresh')")
				locker, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = locker.Rollback() }()
				if _, err := locker.ExecContext(t.Context(), tt.lock); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				out, errs, code := command(t, nil, "init", "--from-table", "outbox", "--source", source)
				for _, line := range tt.want {
					if code != tt.code || !strings.Contains(out+errs, line) {
						t.Errorf("exit code %d, want %d with %q\n%s%s", code, tt.code, line, out, errs)
					}
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// The table of each project is known by its columns, on each of the project's databases.
func TestInitFromTableOfLayouts(t *testing.T) {
	t.Parallel()
	for on, db := range map[string]layouts.Database{"postgres": layouts.Postgres, "mysql": layouts.MySQL, "mariadb": layouts.MySQL, "sqlite": layouts.SQLite} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			onEverydayDatabase(t, on, func(t *testing.T, source string, created *sql.DB) {
				run(t, created, "CREATE TABLE other (id int)") // an SQLite file exists with its first table
				for _, p := range layouts.All() {
					if _, has := p.Schemas[db]; !has {
						continue
					}
					table := "t_" + strings.ReplaceAll(p.Name, "-", "_")
					if out, errs, code := command(t, nil, "init", "--outbox", p.Name, "--table", table, "--source", source, "--apply"); code != 0 {
						t.Fatalf("%s: exit code %d, want 0\n%s%s", p.Name, code, out, errs)
					}
					out, errs, code := command(t, nil, "init", "--from-table", table, "--source", source)
					if code != 0 || !strings.Contains(out, "  layout: "+p.Name+" # likely: the table has its columns\n") {
						t.Errorf("%s: exit code %d with another layout:\n%s%s", p.Name, code, out, errs)
					}
					if _, errs, code := command(t, []string{"SLUICEBOX_SOURCE_URL=" + source}, "config", "check", "-c", configFile(t, out)); code != 0 {
						t.Errorf("%s: exit code %d, want 0: %s\n%s", p.Name, code, errs, out)
					}
				}
			})
		})
	}
}
