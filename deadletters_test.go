package sluicebox

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// TestDeadLettersAct checks that actions go through the dispatcher of the
// outbox, except that a polling source finds requeued rows by itself.
func TestDeadLettersAct(t *testing.T) {
	r, l, logged := operatedRelay(t)
	controller := r.DeadLetters()
	n, err := controller.Requeue(t.Context(), store.DeadLetterFilter{Outbox: "bills"}, 7)
	if err != nil || n != 1 {
		t.Errorf("requeued %d, %v", n, err)
	}
	if lanes, _, err := r.Lanes().List(dispatch.LaneFilter{Outbox: "bills"}, 9); err != nil || groups(lanes) != "bills/g" || lanes[0].Head != "back" {
		t.Errorf("the row is in %s, %v", groups(lanes), err)
	}
	r.isPolling.Store(true)
	if n, err = controller.Requeue(t.Context(), store.DeadLetterFilter{Outbox: "orders"}, 8); err != nil || n != 1 {
		t.Errorf("requeued %d, %v", n, err)
	}
	if lanes, _, err := r.Lanes().List(dispatch.LaneFilter{Outbox: "orders"}, 9); err != nil || len(lanes) > 0 {
		t.Errorf("the row is in %s, %v", groups(lanes), err)
	}
	if n, err = controller.Discard(t.Context(), store.DeadLetterFilter{Outbox: "orders"}, 9); err != nil || n != 0 {
		t.Errorf("discarded %d, %v", n, err)
	}
	if want := []string{"requeue bills 7", "requeue orders 8", "discard orders 9"}; !slices.Equal(l.did, want) {
		t.Errorf("did %q", l.did)
	}
	if text := logged.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `msg="dead letters requeued by operator" outbox=bills rows=1`) {
		t.Errorf("logged %s", text)
	}
	at := time.Now()
	_, err = controller.Discard(t.Context(), store.DeadLetterFilter{Outbox: "orders", Since: at, Until: at}, 9)
	var request *RequestError
	if !errors.As(err, &request) || !strings.Contains(request.Problem, "is not before until") {
		t.Errorf("got %v", err)
	}
}
