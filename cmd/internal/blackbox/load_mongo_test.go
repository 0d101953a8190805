package blackbox

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// realTransactionsMongo is the length of a load that looks like a service's.
const realTransactionsMongo = 500

// A service writes into both FlowCatalyst collections: 50 groups, several documents per
// transaction, 300 per second. Every document arrives once, in the commit order of its group,
// and is COMPLETED.
func TestMongoRealInput(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		r := s.run()
		s.write(mongoLoad{Transactions: realTransactionsMongo, Clients: 8, Rate: 120, Most: 4, Groups: 50})()
		rows := s.expectOnce()
		if gone := r.metric(`sluicebox_claim_rows_total{result="gone"}`); gone > 0 {
			s.t.Errorf("%.0f documents were counted as vanished, want 0", gone)
		}
		s.t.Logf("%d documents, each once and in order", rows)
		expectStop(s.t, r)
	})
}

// The same for the outbox-messages collection, in both forms and with its wire. Delivered
// documents are deleted.
func TestMongoRealInputOfOutboxMessages(t *testing.T) {
	t.Parallel()
	for form, layout := range map[string]string{"messages": "outbox-messages", "text": "outbox-messages-text"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			aMongo(t, "", func(s *mongoScene) {
				s.must(s.db.CreateCollection(context.Background(), "outbox_messages"))
				if form == "text" { // its id is an ordinary field
					s.unique("outbox_messages", "id")
				}
				s.config = fmt.Sprintf(`
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_messages, layout: %s, sink: platform}
sinks:
  platform: {type: flowcatalyst, wire: items, api-base-url: %q}
admin: {listen: %s}
`, nameFor(s.database), s.database, layout, s.to.URL(), adminKey)
				r := s.run()
				s.write(mongoLoad{Transactions: realTransactionsMongo, Clients: 8, Rate: 120, Most: 4, Groups: 50, Form: form})()
				within(s.t, testTimeout, func() string {
					if n := s.count(bson.M{}, "outbox_messages"); n > 0 {
						return fmt.Sprintf("%d documents were not deleted", n)
					}
					return ""
				})
				rows, again := s.checkOrder()
				if rows == 0 || again > 0 {
					s.t.Errorf("%d documents, %d more than once", rows, again)
				}
				expectStop(s.t, r)
			})
		})
	}
}

// A clean stop under load leaves no document PROCESSING, and nothing arrives twice after the
// next start.
func TestMongoCleanStopUnderLoad(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		r := s.run()
		wait := s.write(mongoLoad{Transactions: 400, Clients: 8, Rate: 120, Most: 4, Groups: 50})
		for stop := 1; stop <= 3; stop++ {
			arrive(s.t, s.to, stop*200)
			expectStop(s.t, r)
			if n := s.processing(); n > 0 {
				s.t.Errorf("%d documents are left PROCESSING by a clean stop, want 0", n)
			}
			r = s.run()
		}
		wait()
		s.expectOnce()
		expectStop(s.t, r)
	})
}

// Documents from before the first start arrive first, in createdAt order, whether they are
// PENDING or left in PROCESSING. Settled ones are not sent.
func TestMongoBacklogOfTheFirstStart(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		settled := s.backlog(400)
		wait := s.write(mongoLoad{Seconds: 3, Clients: 4, Rate: 100, Most: 3, Groups: 10})
		r := start(s.t, s.config)
		wait()
		rows := s.rows() - settled
		arrive(s.t, s.to, rows)
		last := ""
		for _, got := range s.to.Accepted() {
			if got.ID[0] != 'B' {
				continue
			}
			if last != "" && got.ID >= last {
				s.t.Errorf("document %s arrived after %s, which is younger", got.ID, last)
			}
			last = got.ID
		}
		if c := s.to.Counts(); c.Duplicates > 0 || c.Distinct != rows {
			s.t.Errorf("%+v of %d documents", c, rows)
		}
		awaitZero(s.t, "documents are not COMPLETED", func() int {
			return s.count(bson.M{"status": bson.M{"$ne": "COMPLETED"}}, seedCollections()...)
		})
		expectStop(s.t, r)
	})
}

// A poisoned document is FAILED with its reason after its retries. Its group continues in
// order.
func TestMongoAPoisonedDocumentIsFailed(t *testing.T) {
	t.Parallel()
	aMongo(t, "dispatch: {max-retries: 2, backoff: {initial: 20ms}}\n", func(s *mongoScene) {
		const poisoned = "E000100000005"
		poison(s.to, sinktest.Answer{Status: 400, Body: []byte(`{"error":"schema: no such type"}`)}, poisoned)
		r := s.run()
		s.write(mongoLoad{Transactions: 40, Clients: 1, Groups: 1})()
		arrive(s.t, s.to, s.rows()-1)
		within(s.t, testTimeout, func() string {
			var d struct {
				Status, ErrorMessage string
				RetryCount           int `bson:"retryCount"`
			}
			got := s.db.Collection("outbox_events").FindOne(context.Background(), bson.M{"_id": poisoned})
			raw, err := got.Raw()
			if err != nil {
				return err.Error()
			}
			if err := bson.Unmarshal(raw, &d); err != nil || d.Status != "FAILED" || d.RetryCount != 2 {
				return fmt.Sprintf("the document is %s: %v", raw, err)
			}
			return ""
		})
		awaitZero(s.t, "documents are not COMPLETED", func() int {
			return s.count(bson.M{"status": bson.M{"$nin": bson.A{"COMPLETED", "FAILED"}}}, seedCollections()...)
		})
		expectStop(s.t, r)
	})
}
