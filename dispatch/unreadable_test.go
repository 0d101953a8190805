package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// TestUnreadableRowsBecomeFailed: a row that its source could not read is not sent. It becomes
// FAILED with the reason, and the rows around it are delivered in order.
func TestUnreadableRowsBecomeFailed(t *testing.T) {
	drive(t, senders(2), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var sent []string
		k.set(func() {
			answer := k.answer
			k.answer = func(ids []string) sink.Result {
				sent = append(sent, ids...)
				return answer(ids)
			}
		})
		rows := items("a", "1", "2", "3", "4", "5")
		for _, i := range []int{0, 2, 3} {
			rows[i].Attributes = store.Attributes{{Name: store.AttributeUnreadable, Value: "no JSON"}}
		}
		add(t, d, nil, rows)
		k.advance(time.Hour)
		k.expect(t, "sent", fmt.Sprint(sent), "[2 5]")
		failed := failedIDs(k.outcomes)
		slices.Sort(failed)
		k.expect(t, "FAILED", fmt.Sprint(failed), "[1 3 4]")
		for _, o := range k.outcomes {
			if o.Status == store.Failed && !strings.Contains(o.Error, "not sent: no JSON") {
				t.Errorf("row %s is FAILED for %q", o.ID, o.Error)
			}
		}
		k.expect(t, "breakers", k.breakerReports, "[]")
	})
}
