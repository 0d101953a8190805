package blackbox

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// plantedTable relays a table of words, of which no relay runs.
const plantedTable = `
name: planted
source: {url: %q}
outboxes:
  - table: planted
    layout: custom
    state: words
    order-by: [created_at]
    kind: EVENT
    sink: out
    columns: {id: id, group: message_group, payload: payload, status: status, claimed: claimed_at, retry-count: retries, error: error}
    words: {pending: PENDING, processing: PROCESSING, completed: COMPLETED, failed: FAILED}
sinks: {out: {type: webhook, url: "http://127.0.0.1:1"}}
`

// plantedRows are the states of rows 1, 2 and so on of one group.
func plantedRows() []string {
	return []string{"COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED", "PENDING", "FAILED"}
}

// A loss, a swap and a false COMPLETED are found in the tables of every database.
func TestVerifyTables(t *testing.T) {
	t.Parallel()
	const ddl = "CREATE TABLE planted (id VARCHAR(40) PRIMARY KEY, message_group VARCHAR(40), payload TEXT, status VARCHAR(20), claimed_at %s NULL, retries INT, error TEXT, created_at %s)"
	table := func(t *testing.T, d deliveries) {
		for i, state := range plantedRows() {
			d.exec(fmt.Sprintf("INSERT INTO planted (id, message_group, payload, status, retries, created_at) VALUES ('r%d', 'g', '{}', '%s', 0, '2026-01-01 00:00:0%d.000')", i+1, state, i))
		}
		expectPlanted(t, fmt.Sprintf(plantedTable, d.source))
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		table(t, sqliteTable(t, fmt.Sprintf(ddl, "DATETIME", "DATETIME")))
	})
	for _, f := range servers.Chosen(servers.Flavours()) {
		h := mysqlHost(f)
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			database := h.database(t)
			h.kind.run(t, database, fmt.Sprintf(ddl, "DATETIME(6)", "DATETIME(6)"))
			table(t, deliveries{source: database, exec: func(statement string) { h.kind.run(t, database, statement) }})
		})
	}
	t.Run("mongo", func(t *testing.T) {
		t.Parallel()
		aMongo(t, "", func(s *mongoScene) {
			for i, state := range plantedRows() {
				row := bson.M{"_id": fmt.Sprint("r", i+1), "type": "EVENT", "messageGroup": "g", "payload": "{}", "status": state, "retryCount": 0, "createdAt": time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC)}
				if _, err := s.db.Collection("outbox_events").InsertOne(t.Context(), row); err != nil {
					t.Fatal(err)
				}
			}
			expectPlanted(t, s.config)
		})
	})
}

// expectPlanted verifies the rows: row 2 arrived behind row 3, and rows 4 and 5 did not.
func expectPlanted(t *testing.T, config string) {
	t.Helper()
	receipts := filepath.Join(t.TempDir(), "receipts")
	writeFile(t, receipts, "{\"id\":\"r1\"}\n{\"id\":\"r3\"}\n{\"id\":\"r2\"}\n")
	s := &scene{t: t, config: config}
	file := filepath.Join(t.TempDir(), "sluicebox.yaml")
	writeFile(t, file, strings.ReplaceAll(config, adminKey, "127.0.0.1:1"))
	if _, stderr, code := command(t, nil, "init", "-c", file); code != 0 { // the relay's tables
		t.Fatalf("init: exit code %d, %s", code, stderr)
	}
	got := s.verify(1, "--receipts", receipts).Targets[0]
	found := map[string]string{}
	for _, f := range got.Findings {
		found[f.Kind] += f.ID + f.Behind
	}
	if want := map[string]string{"lost": "r5", "out_of_order": "r2r3", "false_completed": "r4"}; fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("found %v, want %v", found, want)
	}
	if got.Completed != 4 || got.Failed != 1 || got.Arrived != 3 {
		t.Errorf("got %+v, want 4 COMPLETED, 1 FAILED and 3 arrived", got)
	}
}
