package blackbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// rest returns the rows of a kept quickstart that are not COMPLETED, by id. file is its
// configuration.
func rest(t *testing.T, source, file string) map[string]event {
	t.Helper()
	open := map[string]event{}
	add := func(id, payload string) {
		var e event
		if err := json.Unmarshal([]byte(payload), &e); err != nil {
			t.Fatalf("row %s: %v", id, err)
		}
		open[id] = e
	}
	if ofMySQL(source) {
		readOpen(t, servers.OpenMySQL(t, source), keptName(t, file)+".outbox_events", add)
		return open
	}
	if source != "" {
		rows, err := servers.Connect(t, source).Query(context.Background(),
			"SELECT id, payload FROM "+keptName(t, file)+".outbox_events WHERE status <> 'COMPLETED'")
		if err != nil {
			t.Fatal(err)
		}
		eachRow(t, rows, add)
		return open
	}
	path := url.URL{Scheme: "file", Path: filepath.Join(filepath.Dir(file), "quickstart.db"), RawQuery: "_pragma=busy_timeout(10000)"}
	db, err := sql.Open("sqlite", path.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	readOpen(t, db, "outbox_events", add)
	return open
}

// readOpen reads the rows of a table that are not COMPLETED.
func readOpen(t *testing.T, db *sql.DB, table string, add func(id, payload string)) {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), "SELECT id, payload FROM "+table+" WHERE status <> 'COMPLETED'")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	eachRow(t, rows, add)
}

// cursor has the methods common to the rows of all databases.
type cursor interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

func eachRow(t *testing.T, rows cursor, add func(id, payload string)) {
	t.Helper()
	for rows.Next() {
		var id, payload string
		if err := rows.Scan(&id, &payload); err != nil {
			t.Fatal(err)
		}
		add(id, payload)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// retainedNameOf returns the name in a kept quickstart's configuration.
func keptName(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := nameIn(text)
	if name == "" {
		t.Fatalf("no name in %s", text)
	}
	return name
}

// nameIn returns the relay's name in a configuration, or "".
func nameIn(text []byte) string {
	found := regexp.MustCompile(`(?m)^name: (\w+)\n`).FindSubmatch(text)
	if found == nil {
		return ""
	}
	return string(found[1])
}
