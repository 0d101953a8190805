package admin_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
)

// reports is a Reporter that records its calls.
type reports struct {
	mu    sync.Mutex
	asked []bool
}

func (r *reports) Report(_ context.Context, failed bool) admin.RelayStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, failed)
	s := admin.RelayStatus{Name: "shop", IsLeader: true, Epoch: 3, Sinks: []admin.SinkStatus{{Name: "platform", Waiting: 4}}, Lanes: []dispatch.LaneInfo{}}
	if failed {
		n := 2
		s.Failed = []admin.FailedRows{{Outbox: "o", Rows: &n, At: time.Unix(1_700_000_000, 0).UTC()}}
	}
	return s
}

func TestStatus(t *testing.T) {
	var ready checks
	from := &reports{}
	base := serve(t, admin.Config{Token: "right", Report: from}, &ready)
	c := newClient(t, base, "right")

	ready.set(sluicebox.Check{Name: "source", OK: true, Detail: "reading the log"})
	s, err := c.Status(t.Context(), false)
	if err != nil || s.Name != "shop" || !s.Ready || len(s.Checks) != 1 || s.Checks[0].Detail != "reading the log" || s.Failed != nil || s.Sinks[0].Waiting != 4 {
		t.Errorf("%+v, %v", s, err)
	}
	ready.set(sluicebox.Check{Name: "database", OK: true}, sluicebox.Check{Name: "source", Detail: "silent"})
	s, err = c.Status(t.Context(), true)
	if err != nil || s.Ready || len(s.Failed) != 1 || *s.Failed[0].Rows != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	got := ask(t, "GET", base+"/api/v1/status?count", "Authorization", "Bearer right")
	for _, part := range []string{
		`"ready":false`, `{"name":"source","ok":false,"detail":"silent"}`, `"last_received_at":null`, `"retained_bytes":null`, `"saved_at":null`,
		`"lag":{"rows":0,"oldest":null,"seconds":null}`, `"captured_per_second":{"10s":0,"1m":0}`, `"lanes":[]`, `"failed":[{"outbox":"o","rows":2,`,
	} {
		if !strings.Contains(got.body, part) {
			t.Errorf("the answer lacks %s: %s", part, got.body)
		}
	}
	if len(from.asked) != 3 || from.asked[0] || !from.asked[1] || !from.asked[2] {
		t.Errorf("asked for counts: %v", from.asked)
	}
}

func TestStatusIsGuarded(t *testing.T) {
	from := &reports{}
	base := serve(t, admin.Config{Token: "right", Report: from}, &checks{})
	expectError(t, "no token", ask(t, "GET", base+"/api/v1/status"), http.StatusUnauthorized, "token")
	bearer := []string{"Authorization", "Bearer right"}
	expectError(t, "an unknown parameter", ask(t, "GET", base+"/api/v1/status?verbose=1", bearer...), http.StatusBadRequest, `unknown parameter "verbose"; the parameters are count`)
	expectError(t, "no truth value", ask(t, "GET", base+"/api/v1/status?count=many", bearer...), http.StatusBadRequest, "count is")
	if got := ask(t, "POST", base+"/api/v1/status", bearer...); got.status != http.StatusMethodNotAllowed {
		t.Errorf("POST answers %d", got.status)
	}
	if len(from.asked) > 0 {
		t.Errorf("the relay was asked %d times", len(from.asked))
	}
	_, err := newClient(t, base, "wrong").Status(t.Context(), true)
	var refused *admin.APIError
	if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %v", err)
	}
}
