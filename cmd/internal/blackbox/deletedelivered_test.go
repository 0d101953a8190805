package blackbox

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// deletingOutbox is an outbox whose delivered rows are deleted. column is the column of its
// state, and refused the state of a refused row.
type deletingOutbox struct{ table, column, keys, refused string }

// deletingOutboxes are outboxes of each kind of state. No value of a delivered row is
// configured.
func deletingOutboxes() []deletingOutbox {
	return []deletingOutbox{
		{"by_word", "status varchar(9) NOT NULL DEFAULT 'NEW'", "columns: {id: id, payload: body, status: status}, state: words, words: {pending: NEW}", "NEW"},
		{"by_words", "status varchar(9) NOT NULL DEFAULT 'NEW'", "columns: {id: id, payload: body, status: status}, state: words, words: {pending: NEW, processing: BUSY, failed: DEAD}", "DEAD"},
		{"by_number", "status int NOT NULL DEFAULT 5", "columns: {id: id, payload: body, status: status}, state: numbers, numbers: {pending: 5, failed: -1}", "-1"},
		{"by_flag", "status boolean NOT NULL DEFAULT false", "columns: {id: id, payload: body, status: status}, state: boolean", "false"},
		{"by_time", "sent_at timestamp NULL", "columns: {id: id, payload: body, delivered: sent_at}, state: timestamps", ""},
		{"by_nothing", "note varchar(9)", "columns: {id: id, payload: body}, state: none", ""},
	}
}

func deletingConfig(source, url string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nsource: {mode: stream, url: %q}\nadmin: {listen: %s}\nsinks: {hooks: {type: webhook, url: %q, max-retries: 0, proof-wait: 1s}}\noutboxes:\n", nameFor(source), source, adminKey, url)
	for _, o := range deletingOutboxes() {
		fmt.Fprintf(&b, "- {table: %s, layout: custom, kind: %[1]s, sink: hooks, delete-delivered: true, %s}\n", o.table, o.keys)
	}
	return b.String()
}

// deletingReceiver refuses the rows whose payload says so.
func deletingReceiver(t *testing.T) *sinktest.Receiver {
	t.Helper()
	to := sinktest.NewReceiver(t)
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		if strings.Contains(string(r.Body), `"bad"`) {
			return sinktest.Answer{Status: http.StatusUnprocessableEntity}
		}
		return sinktest.Answer{Status: http.StatusNoContent}
	})
	return to
}

// deletingRows is the number of rows in each outbox. One of them is refused and stays.
const deletingRows = 20

func deletingPayload(n int) string {
	if n == deletingRows/2 {
		return `{"bad": 1}`
	}
	return fmt.Sprintf(`{"n": %d}`, n)
}

// delete-delivered deletes a delivered row whatever state its table stores, with no value for
// delivered rows. Refused rows stay, and so do rows that are in no state of the layout.
func TestDeleteDelivered(t *testing.T) {
	t.Parallel()
	for _, on := range []string{"postgres", "mysql", "mariadb", "sqlite"} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			onEverydayDatabase(t, on, checkDeletes)
		})
	}
}

func checkDeletes(t *testing.T, source string, db *sql.DB) {
	t.Helper()
	for _, o := range deletingOutboxes() {
		run(t, db, fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, body text NOT NULL, %s)", o.table, o.column))
	}
	run(t, db, "INSERT INTO by_word (id, body, status) VALUES (1000, '{}', 'HELD')")
	insert := func(from, to int) {
		for n := from; n <= to; n++ {
			for _, o := range deletingOutboxes() {
				run(t, db, fmt.Sprintf("INSERT INTO %s (id, body) VALUES (%d, '%s')", o.table, n, deletingPayload(n)))
			}
		}
	}
	to := deletingReceiver(t)
	insert(1, deletingRows/2-1)
	r := start(t, deletingConfig(source, to.URL()))
	r.waitFor("source connected")
	insert(deletingRows/2, deletingRows)
	for _, o := range deletingOutboxes() {
		within(t, testTimeout, func() string { return deletingLeft(t, db, o.table, o.refused) })
	}
	for _, got := range to.Accepted() {
		if strings.Contains(string(got.Payload), "{}") {
			t.Errorf("a row in no state of the layout was sent")
		}
	}
	expectStop(t, r)
}

// deletingLeft says which rows are left beside the refused one, "" if none.
func deletingLeft(t *testing.T, db *sql.DB, table, state string) string {
	t.Helper()
	column := "''"
	if state != "" {
		column = "status"
	}
	rows, err := db.QueryContext(context.Background(), "SELECT id, "+column+" FROM "+table+" WHERE id < 1000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var left []string
	for rows.Next() {
		var id int
		var is string
		if err := rows.Scan(&id, &is); err != nil {
			t.Fatal(err)
		}
		if is = strings.NewReplacer("0", "false").Replace(is); id == deletingRows/2 && is == state {
			is = "as it is"
		}
		left = append(left, fmt.Sprint(id, " ", is))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || !strings.HasSuffix(left[0], " as it is") {
		return fmt.Sprintf("%s: rows are left: %q, want the refused one, %d, in state %q", table, left, deletingRows/2, state)
	}
	return ""
}

// On MongoDB, delete-delivered deletes documents in the same way.
func TestMongoDeleteDelivered(t *testing.T) {
	t.Parallel()
	chooseMongo(t)
	source := servers.Mongo(t)
	db := servers.OpenMongo(t, source)
	states := map[string]any{"by_word": "NEW", "by_words": "NEW", "by_number": 5, "by_flag": false}
	insert := func(from, to int) {
		for n := from; n <= to; n++ {
			for _, o := range deletingOutboxes() {
				document := bson.M{"id": n, "body": deletingPayload(n)}
				if state, has := states[o.table]; has {
					document["status"] = state
				}
				if _, err := db.Collection(o.table).InsertOne(t.Context(), document); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	to := deletingReceiver(t)
	insert(1, deletingRows/2-1)
	r := start(t, strings.ReplaceAll(deletingConfig(source, to.URL()), "id: id", "id: _id"))
	r.waitFor("source connected")
	insert(deletingRows/2, deletingRows)
	for _, o := range deletingOutboxes() {
		within(t, testTimeout, func() string {
			left, err := db.Collection(o.table).CountDocuments(t.Context(), bson.M{})
			kept, err2 := db.Collection(o.table).CountDocuments(t.Context(), bson.M{"id": deletingRows / 2})
			if err != nil || err2 != nil || left != 1 || kept != 1 {
				return fmt.Sprintf("%s: %d documents are left, want the refused one: %v", o.table, left, err)
			}
			return ""
		})
	}
	expectStop(t, r)
}
