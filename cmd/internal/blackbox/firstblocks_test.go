package blackbox

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A first start with on-failed: block keeps the order that an earlier processor left. A group
// with a FAILED row and waiting rows is blocked until an operator skips the FAILED row. This
// holds for waiting rows in memory and spilled ones, and after a kill. A group without
// waiting rows continues. By hand:
//
//	go test -v -run 'TestFirstStartBlocksGroups' ./cmd/internal/blackbox
func TestFirstStartBlocksGroups(t *testing.T) {
	t.Parallel()
	for name, buffer := range map[string]int{"in memory": 1000, "parked": 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachKind(t, fmt.Sprintf("dispatch: {on-failed: block, global-buffer-size: %d}\n", buffer), func(s *scene) {
				s.number(1, 100, "i % 10")
				for sql, ids := range map[string]string{ // group 0 waits behind row 30; in group 1 no row waits
					"UPDATE outbox_events SET status = 'FAILED', error_message = 'no such thing', retry_count = 1 WHERE id IN (": quoted(numbered(10), numbered(30), numbered(11)),
					"UPDATE outbox_events SET status = 'COMPLETED' WHERE message_group = '1' AND id NOT IN (":                    quoted(numbered(11)),
				} {
					s.exec(sql + ids + ")")
				}
				r := s.run()
				r.waitFor("message groups blocked by earlier FAILED rows")
				const sent, behind = 80, 8 // groups 2 to 9; in group 0, row 20 and the rows behind 30
				arrive(s.t, s.to, sent)
				s.number(101, 110, "i % 10")
				arrive(s.t, s.to, sent+9)
				s.expectHead(r)
				within(s.t, testTimeout, func() string {
					if n := s.completed(); n != sent+9+9 {
						return fmt.Sprintf("%d rows are COMPLETED", n)
					}
					return ""
				})
				r.kill()
				r = s.run()
				s.expectHead(r)
				if c := s.to.Counts(); c.Distinct != sent+9 {
					s.t.Errorf("%d rows were accepted, want %d", c.Distinct, sent+9)
				}
				r.operate("lanes", "skip", "--group", "0", "--reason", "we know why")
				arrive(s.t, s.to, sent+9+behind+1)
				if again := checkNumbered(s.t, s.to.Accepted()); again > 0 {
					s.t.Errorf("%d rows arrived more than once, want 0", again)
				}
				expectStop(s.t, r)
			})
		})
	}
}

// expectHead waits until group 0, and no other, is blocked by row 30.
func (s *scene) expectHead(r *relay) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		l := r.lane("0")
		if n := r.metric(`sluicebox_lanes{sink="flowcatalyst",state="blocked"}`); n != 1 || l.State != "blocked" || l.Head != numbered(30) || l.Error != "no such thing" {
			return fmt.Sprintf("%.0f lanes are blocked, that of group 0 is %+v", n, l)
		}
		return ""
	})
}

// The same on MongoDB.
func TestMongoFirstStartBlocksGroups(t *testing.T) {
	t.Parallel()
	aMongo(t, "dispatch: {on-failed: block}\n", func(s *mongoScene) {
		s.load(60)
		events := s.db.Collection("outbox_events")
		var some bson.M
		s.must(events.FindOne(context.Background(), bson.M{"messageGroup": bson.M{"$ne": nil}}).Decode(&some))
		group := some["messageGroup"]
		_, err := events.UpdateOne(context.Background(), bson.M{"_id": some["_id"]}, bson.M{"$set": bson.M{"status": "FAILED"}})
		s.must(err)
		waiting := s.count(bson.M{"messageGroup": group, "status": "PENDING"}, "outbox_events")
		if waiting == 0 {
			t.Fatal("no row waits behind the FAILED one")
		}
		r := s.run()
		r.waitFor("message groups blocked by earlier FAILED rows")
		arrive(t, s.to, s.rows()-waiting-1)
		within(t, testTimeout, func() string {
			if n := s.count(bson.M{"messageGroup": group, "status": "PENDING"}, "outbox_events"); n != waiting {
				return fmt.Sprintf("%d of %d rows wait behind the FAILED one", n, waiting)
			}
			return ""
		})
		expectStop(t, r)
	})
}
