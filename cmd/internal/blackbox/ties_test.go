package blackbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

const (
	tiedRows  = 1000
	tiedBatch = 100
)

// tiedRow is the nth row of a writer whose batches share a created_at and have random ids.
func tiedRow(n int) (id, payload string, at time.Time) {
	id = fmt.Sprintf("%013d", n*7919%99991)
	at = time.Date(2026, 1, 2, 3, 4, 5+n/tiedBatch, 0, time.UTC)
	return id, fmt.Sprintf(`{"id": "%s", "n": %d}`, id, n), at
}

// tiedInserts are the INSERT statements of all rows, one per batch.
func tiedInserts() (list []string) {
	for from := 0; from < tiedRows; from += tiedBatch {
		var rows []string
		for n := from; n < from+tiedBatch; n++ {
			id, payload, at := tiedRow(n)
			rows = append(rows, fmt.Sprintf("('%s', 'EVENT', 'g', '%s', 'PENDING', '%s')", id, payload, at.Format(time.DateTime)))
		}
		list = append(list, "INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES "+strings.Join(rows, ", "))
	}
	return list
}

// expectTied starts a relay for the first time on a table with these rows, and expects them in
// insertion order.
func expectTied(t *testing.T, config string, to *sinktest.Receiver) {
	t.Helper()
	r := start(t, config)
	arrive(t, to, tiedRows)
	inversions, last := 0, -1
	for _, row := range to.Accepted() {
		var p struct{ N int }
		if err := json.Unmarshal(row.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if p.N < last {
			inversions++
		}
		last = p.N
	}
	if inversions > 0 {
		t.Errorf("%d of %d rows of one group arrived before one that was inserted earlier, want 0", inversions, tiedRows)
	}
	expectStop(t, r)
}

// Rows of one batch share a created_at, and their ids are random. A first start delivers them in
// insertion order, if the database knows it. SQL servers do with an additional column.
func TestRowsThatShareCreatedAt(t *testing.T) {
	t.Parallel()
	t.Run("tables", func(t *testing.T) {
		eachKind(t, "", func(s *scene) {
			number := "GENERATED ALWAYS AS IDENTITY"
			if !s.kind.postgres {
				number = "NOT NULL AUTO_INCREMENT UNIQUE"
			}
			s.exec("ALTER TABLE outbox_events ADD COLUMN seq BIGINT " + number)
			s.exec(tiedInserts()...)
			expectTied(s.t, s.config, s.to)
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		source, db := seedFile(t)
		for _, insert := range tiedInserts() {
			run(t, db, insert)
		}
		to := sinktest.NewReceiver(t)
		expectTied(t, preset(source, to.URL(), ""), to)
	})
	t.Run("mongo", func(t *testing.T) {
		aMongo(t, "", func(s *mongoScene) {
			for from := 0; from < tiedRows; from += tiedBatch {
				var batch []any
				for n := from; n < from+tiedBatch; n++ {
					id, payload, at := tiedRow(n)
					batch = append(batch, bson.M{"_id": id, "type": "EVENT", "messageGroup": "g", "payload": payload, "status": "PENDING", "createdAt": at})
				}
				if _, err := s.db.Collection("outbox_events").InsertMany(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
			}
			expectTied(t, s.config, s.to)
		})
	})
}
