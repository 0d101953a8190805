package admin_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

func newClient(t *testing.T, base, token string) *admin.Client {
	t.Helper()
	c, err := admin.NewClient(base, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestClient checks that requests and responses survive the way between client and
// server.
func TestClient(t *testing.T) {
	d := &recorder{lanes: someLanes(), total: 9, count: func(store.DeadLetterFilter) (int, error) { return 5, nil }}
	base := serveRecorder(t, d, "right")
	c := newClient(t, strings.TrimPrefix(base, "http://")+"/", "right")

	for _, f := range []dispatch.LaneFilter{
		{}, {Outbox: "a&b", Kind: "K=1", State: "blocked", Group: &store.Group{Name: "x/ü", Valid: true}},
		{Group: &store.Group{}}, {Group: &store.Group{Valid: true}},
	} {
		list, err := c.Lanes(t.Context(), f, 2)
		if err != nil || list.Total != 9 || len(list.Lanes) != 2 || list.Lanes[0].Group.Name != "<g>" || list.Lanes[1].Group.Valid {
			t.Fatalf("%+v: %+v, %v", f, list, err)
		}
		if got := d.filter; got.Outbox != f.Outbox || got.Kind != f.Kind || got.State != f.State ||
			(got.Group == nil) != (f.Group == nil) || f.Group != nil && *f.Group != *got.Group {
			t.Errorf("%+v arrives as %+v", f, got)
		}
	}
	group := "<g>"
	lane, err := c.ActOnLane(t.Context(), "skip", admin.LaneRequest{LaneName: dispatch.LaneName{LaneKey: store.LaneKey{Outbox: "o", Kind: "EVENT", Group: store.GroupOf(group)}}, Reason: "bad & <old>"})
	if err != nil || lane.State != "blocked" {
		t.Errorf("skip: %+v, %v", lane, err)
	}
	if lane, err = c.ActOnLane(t.Context(), "resume", admin.LaneRequest{LaneName: dispatch.LaneName{LaneKey: store.LaneKey{Outbox: "o", Kind: "K"}}}); err != nil || lane.State != "" {
		t.Errorf("resume: %+v, %v", lane, err)
	}
	n, err := c.ActOnDeadLetters(t.Context(), "discard", admin.DeadLetterRequest{Outbox: "o", NoGroup: true, IDs: []string{"1"}, Limit: 2})
	if err != nil || n.Count != 2 || showFilter(d.chosen) != `o ["1"] "" false "" ""` {
		t.Errorf("discard: %+v of %s, %v", n, showFilter(d.chosen), err)
	}
	n, err = c.ActOnDeadLetters(t.Context(), "requeue", admin.DeadLetterRequest{Outbox: "o", DryRun: true})
	if err != nil || n.Count != 5 || time.Since(n.Until) > time.Minute {
		t.Errorf("dry run: %+v, %v", n, err)
	}
	if asked := d.said(); !slices.Equal(asked, []string{`skip o/EVENT/<g> "": bad & <old>`, `resume o/K/(none) ""`, "discard 2"}) {
		t.Errorf("asked %q", asked)
	}

	d.err = dispatch.ErrNoLane
	_, err = c.ActOnLane(t.Context(), "resume", admin.LaneRequest{LaneName: dispatch.LaneName{LaneKey: store.LaneKey{Outbox: "o", Kind: "K"}}})
	var refused *admin.APIError
	if !errors.As(err, &refused) || refused.Status != 404 || err.Error() != "lane not found" {
		t.Errorf("got %v", err)
	}
	_, err = newClient(t, base, "wrong").Lanes(t.Context(), dispatch.LaneFilter{}, 0)
	if !errors.As(err, &refused) || refused.Status != 401 || strings.Contains(err.Error(), "wrong") {
		t.Errorf("got %v", err)
	}
}

// TestClientOfStrangers checks the errors if another server answers, or none.
func TestClientOfStrangers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var secret string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { secret = r.Header.Get("Authorization") }))
	defer elsewhere.Close()
	strange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("outbox") {
		case "page":
			_, _ = io.WriteString(w, "<html>welcome</html>")
		case "moved":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "cut":
			panic(http.ErrAbortHandler)
		case "hangs":
			cancel()
			<-r.Context().Done()
		default:
			http.NotFound(w, r)
		}
	}))
	defer strange.Close()
	c := newClient(t, strange.URL, "right")
	for outbox, want := range map[string]string{
		"page":  "server at " + strange.URL + " is not a relay",
		"moved": "(status 307) has no such endpoint",
		"none":  "(status 404) has no such endpoint; it is not a relay, or has another version",
	} {
		_, err := c.Lanes(t.Context(), dispatch.LaneFilter{Outbox: outbox}, 0)
		var refused *admin.APIError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "welcome") {
			t.Errorf("%s: %v, want %q", outbox, err, want)
		}
	}
	if secret != "" {
		t.Errorf("another address was told %q", secret)
	}
	_, err := c.Lanes(t.Context(), dispatch.LaneFilter{Outbox: "cut"}, 0)
	var away *admin.UnreachableError
	if !errors.As(err, &away) || !away.Sent() || !strings.HasPrefix(err.Error(), "relay at "+strange.URL+" closed the connection before it responded: ") {
		t.Errorf("cut: %v", err)
	}
	if _, err = c.Lanes(ctx, dispatch.LaneFilter{Outbox: "hangs"}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, err = newClient(t, address, "").ActOnLane(t.Context(), "skip", admin.LaneRequest{})
	if !errors.As(err, &away) || away.Sent() || !strings.HasPrefix(err.Error(), "no relay responds at http://"+address+": ") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody: %v", err)
	}
}

func TestClientAddresses(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:8090": "http://127.0.0.1:8090", ":8090": "http://127.0.0.1:8090", "0.0.0.0:1": "http://127.0.0.1:1",
		"[::]:1": "http://[::1]:1", "relay.example:80": "http://relay.example:80", "[fe80::1]:80": "http://[fe80::1]:80",
	} {
		if got, err := admin.BaseURL(listen); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", listen, got, err, want)
		}
	}
	for _, listen := range []string{"", "8090", "127.0.0.1:0"} {
		if got, err := admin.BaseURL(listen); err == nil {
			t.Errorf("%q is %q", listen, got)
		}
	}
	for _, base := range []string{"", "ftp://a", "http://", "http://user:secret@a", "http://a?b=c", "http://a#b", "http://a b"} {
		if _, err := admin.NewClient(base, ""); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", base, err)
		}
	}
}
