package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// relaySpy is everything that the endpoints serve. It counts reads and actions, and fails with err.
type relaySpy struct {
	read, acted int
	err         error
}

func (s *relaySpy) reads() error { s.read++; return s.err }
func (s *relaySpy) acts() error  { s.acted++; return s.err }

func (s *relaySpy) Checks() []sluicebox.Check {
	return []sluicebox.Check{{Name: "database", OK: true, Detail: "detail"}}
}
func (s *relaySpy) Leader() (bool, string) { return true, "detail" }
func (s *relaySpy) Figures() admin.FigureList {
	_ = s.reads()
	return admin.FigureList{}
}
func (s *relaySpy) YAML() ([]byte, error)                                   { return []byte("detail"), s.reads() }
func (s *relaySpy) Outboxes() []string                                      { return []string{"orders"} }
func (s *relaySpy) Reload(context.Context) (admin.Reloaded, error)          { return admin.Reloaded{}, s.acts() }
func (s *relaySpy) RecordAction(context.Context, store.Action) error        { return nil }
func (s *relaySpy) Actions(context.Context, int) ([]store.Action, error)    { return nil, s.reads() }
func (s *relaySpy) Checkpoints(context.Context) ([]admin.Checkpoint, error) { return nil, s.reads() }
func (s *relaySpy) CreateCheckpoint(context.Context, string, bool) error    { return s.acts() }
func (s *relaySpy) DeleteCheckpoint(context.Context, string) error          { return s.acts() }
func (s *relaySpy) Replays(context.Context) ([]admin.Replay, error)         { return nil, s.reads() }
func (s *relaySpy) StartReplay(context.Context, *replay.Spec) (string, error) {
	return "job", s.acts()
}
func (s *relaySpy) ReplayErrors(context.Context, string, int) ([]store.ReplayError, error) {
	return nil, s.reads()
}
func (s *relaySpy) ActOnReplay(context.Context, string, store.DesiredState) error { return s.acts() }
func (s *relaySpy) Explain(_ context.Context, outbox, id string) (*sluicebox.RowReport, error) {
	return &sluicebox.RowReport{Ref: store.Ref{Outbox: outbox, ID: id}}, s.reads()
}
func (s *relaySpy) Report(context.Context, bool) admin.RelayStatus {
	_ = s.reads()
	return admin.RelayStatus{}
}

// Lanes, routes and dead letters have methods of the same names.
type (
	spiedLanes   struct{ *relaySpy }
	spiedRoutes  struct{ *relaySpy }
	spiedLetters struct{ *relaySpy }
)

func (s spiedLanes) List(dispatch.LaneFilter, int) ([]dispatch.LaneInfo, int, error) {
	return someLanes(), 3, s.reads()
}
func (s spiedLanes) RetryNow(dispatch.LaneName) error                       { return s.acts() }
func (s spiedLanes) Skip(context.Context, dispatch.LaneName, string) error  { return s.acts() }
func (s spiedLanes) Pause(context.Context, dispatch.LaneName, string) error { return s.acts() }
func (s spiedLanes) Resume(context.Context, dispatch.LaneName) error        { return s.acts() }

func (s spiedRoutes) List(context.Context, bool) ([]admin.Route, error) {
	return someRoutes().list, s.reads()
}
func (s spiedRoutes) Pause(context.Context, sluicebox.RouteName, string) error { return s.acts() }
func (s spiedRoutes) Resume(context.Context, sluicebox.RouteName) error        { return s.acts() }
func (s spiedRoutes) Skip(context.Context, sluicebox.RouteName, string) (int, error) {
	return 1, s.acts()
}
func (s spiedRoutes) Retry(context.Context, sluicebox.RouteName) (int, error) { return 1, s.acts() }

func (s spiedLetters) Count(context.Context, store.DeadLetterFilter) (int, error) {
	return 1, s.reads()
}
func (s spiedLetters) List(context.Context, store.DeadLetterFilter, int, bool) ([]store.DeadLetter, error) {
	return nil, s.reads()
}
func (s spiedLetters) Requeue(context.Context, store.DeadLetterFilter, int) (int, error) {
	return 1, s.acts()
}
func (s spiedLetters) Discard(context.Context, store.DeadLetterFilter, int) (int, error) {
	return 1, s.acts()
}

const fuzzToken, fuzzViewer = "operators-token", "viewers-token"

// fuzzed returns the handler of a relay with every endpoint except profiles, which take their time.
func fuzzed(tokens bool) (*relaySpy, http.Handler) {
	s := &relaySpy{}
	cfg := admin.Config{
		Listen: "10.0.0.1:8090", Hosts: []string{"relay.example"}, Leader: s, Lanes: spiedLanes{s}, Routes: spiedRoutes{s}, DeadLetters: spiedLetters{s},
		Requests: s, Actions: s, Figures: s, Settings: s, Rows: s, Reloader: s, Report: s,
	}
	if tokens {
		cfg.Token, cfg.ViewerToken = fuzzToken, fuzzViewer
	}
	return s, admin.New(cfg, s).Handler()
}

// readBytes is a body that counts the bytes read of it.
type readBytes struct {
	io.Reader
	n int
}

func (r *readBytes) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.n += n
	return n, err
}

// fuzzRequest is a request of FuzzHandler.
type fuzzRequest struct {
	method, target, host, origin, site, authorization string
	body                                              []byte
	repeat                                            uint16 // how often the body is sent
}

// request returns the request, nil if net/http refuses it before the handler.
func (f *fuzzRequest) request(body *readBytes) *http.Request {
	target, err := url.ParseRequestURI(f.target)
	if err != nil || !strings.HasPrefix(f.target, "/") || f.method == "" || strings.Trim(f.method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return nil
	}
	r := httptest.NewRequest(f.method, "/", body)
	r.URL, r.RequestURI, r.Host = target, f.target, f.host
	for name, value := range map[string]string{"Origin": f.origin, "Sec-Fetch-Site": f.site, "Authorization": f.authorization} {
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil
		}
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return r
}

// isOwnHost reports whether a Host header names the relay, in a few forms that certainly do.
func isOwnHost(host string) bool {
	return slices.Contains([]string{"", "127.0.0.1", "127.0.0.1:8090", "localhost", "localhost:8090", "[::1]:8090", "10.0.0.1:8090", "relay.example", "relay.example:443"}, strings.ToLower(host))
}

// seed is a request to an endpoint.
type seed struct{ method, target, body string }

// fuzzSeeds returns a request to each endpoint.
func fuzzSeeds() []seed {
	const lane = `{"outbox":"o","kind":"EVENT","group":"g","reason":"why"}`
	return []seed{
		{"GET", "/", ""}, {"GET", "/livez", ""}, {"GET", "/readyz?verbose", ""}, {"GET", "/leader?verbose", ""}, {"GET", "/metrics", ""}, {"GET", "/console/app.js", ""},
		{"GET", "/api/v1/status?count=true", ""}, {"GET", "/api/v1/lanes?state=paused&limit=5&group=g", ""}, {"GET", "/api/v1/routes?count=true", ""}, {"GET", "/api/v1/rows/o/id%2F1", ""},
		{"GET", "/api/v1/deadletters?outbox=o&id=1&id=2&since=2026-01-31T15:04:05Z&payload=true", ""}, {"GET", "/api/v1/deadletters/count?kind=k", ""},
		{"GET", "/api/v1/checkpoints", ""}, {"GET", "/api/v1/actions?limit=3", ""}, {"GET", "/api/v1/figures", ""}, {"GET", "/api/v1/config", ""}, {"GET", "/api/v1/session", ""},
		{"GET", "/api/v1/replays", ""}, {"GET", "/api/v1/replays/errors?job=j", ""}, {"GET", "/api/outbox/publishers/kafka", ""}, {"GET", "/api/processors", ""},
		{"POST", "/api/v1/lanes/pause", lane}, {"POST", "/api/v1/lanes/skip", lane}, {"POST", "/api/v1/lanes/retry-now", lane}, {"POST", "/api/v1/lanes/resume", lane},
		{"POST", "/api/v1/routes/orders/bus/pause", `{"reason":"why"}`}, {"POST", "/api/v1/routes/orders/bus/resume", "{}"}, {"POST", "/api/v1/routes/jobs/skip", `{"reason":"why"}`},
		{"POST", "/api/v1/deadletters/requeue", `{"outbox":"o","ids":["1"],"expect":1}`}, {"POST", "/api/v1/deadletters/discard", `{"outbox":"o","no_group":true,"dry_run":true}`},
		{"POST", "/api/v1/checkpoints", `{"name":"a","keep_log":true}`}, {"POST", "/api/v1/checkpoints/delete", `{"name":"a"}`}, {"POST", "/api/v1/reload", "{}"},
		{"POST", "/api/v1/replays", `{"from":"a","outboxes":["o"]}`}, {"POST", "/api/v1/replays/pause", `{"job":"j"}`}, {"POST", "/api/v1/session", `{"token":"guess"}`},
		{"POST", "/api/outbox/publishers/kafka/pause", ""}, {"POST", "/api/processors/bus:kafka/reset", ""}, {"POST", "//api/v1/reload", "{}"}, {"GET", "/api/../metrics", ""}, {"OPTIONS", "/api/v1/lanes", ""},
	}
}

// TestSeedsReachEveryEndpoint: with the token each seed reads or acts, so the checks of FuzzHandler
// have something to find.
func TestSeedsReachEveryEndpoint(t *testing.T) {
	for _, s := range fuzzSeeds() {
		spy, handler := fuzzed(true)
		in := fuzzRequest{method: s.method, target: s.target, host: "relay.example", authorization: "Bearer " + fuzzToken}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, in.request(&readBytes{Reader: strings.NewReader(s.body)}))
		reaches := strings.HasPrefix(s.target, "/api/") && s.target != "/api/v1/session" && !strings.Contains(s.target, "..") && s.method != http.MethodOptions
		if reaches && (w.Code != http.StatusOK || spy.read+spy.acted == 0 || s.method == http.MethodPost && spy.acted == 0 && !strings.Contains(s.body, "dry_run")) {
			t.Errorf("%s %s: %d, %d reads, %d actions: %s", s.method, s.target, w.Code, spy.read, spy.acted, w.Body)
		}
	}
}

// FuzzHandler: whatever a request holds, nothing panics, every 5xx has a name, a body and an answer
// are bounded, and nobody reads or acts without a token, under a foreign Host, or from another site.
func FuzzHandler(f *testing.F) {
	for _, s := range fuzzSeeds() {
		for _, authorization := range []string{"", "Bearer " + fuzzToken, "Bearer " + fuzzViewer, "Basic x"} {
			f.Add(s.method, s.target, "relay.example", "", "", authorization, []byte(s.body), uint16(1), uint8(0))
		}
		f.Add(s.method, s.target, "evil.example", "", "", "", []byte(s.body), uint16(1), uint8(0))
		f.Add(s.method, s.target, "relay.example", "https://evil.example", "", "", []byte(s.body), uint16(1), uint8(0))
		f.Add(s.method, s.target, "127.0.0.1:8090", "https://evil.example", "cross-site", "Bearer "+fuzzToken, []byte(s.body), uint16(60_000), uint8(1))
		f.Add(s.method, s.target, "[::1]:8090", "", "none", "Bearer "+fuzzToken, []byte(s.body), uint16(1), uint8(2))
	}
	failures := []error{nil, sluicebox.ErrNotLeading, dispatch.ErrNoLane, dispatch.ErrLaneState, context.DeadlineExceeded, errors.New("database failed")}
	f.Fuzz(func(t *testing.T, method, target, host, origin, site, authorization string, body []byte, repeat uint16, failure uint8) {
		in := fuzzRequest{method, target, host, origin, site, authorization, body, repeat}
		for _, tokens := range []bool{false, true} {
			spy, handler := fuzzed(tokens)
			spy.err = failures[int(failure)%len(failures)]
			sent := &readBytes{Reader: io.LimitReader(&loop{text: body}, int64(len(body))*int64(repeat))}
			r := in.request(sent)
			if r == nil {
				return
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			checkAnswer(t, &in, spy, w)
			checkAccess(t, &in, spy, w, tokens)
			if sent.n > 2<<20 {
				t.Errorf("%+v: %d bytes of the body were read", in, sent.n)
			}
		}
	})
}

// loop repeats a text.
type loop struct {
	text []byte
	at   int
}

func (l *loop) Read(b []byte) (int, error) {
	if len(l.text) == 0 {
		return 0, io.EOF
	}
	n := copy(b, l.text[l.at:])
	l.at = (l.at + n) % len(l.text)
	return n, nil
}

// checkAnswer checks the form of an answer.
func checkAnswer(t *testing.T, in *fuzzRequest, spy *relaySpy, w *httptest.ResponseRecorder) {
	t.Helper()
	want := map[error]int{nil: 0, sluicebox.ErrNotLeading: 503, context.DeadlineExceeded: 504, dispatch.ErrNoLane: 0, dispatch.ErrLaneState: 0}
	named, known := want[spy.err]
	if !known {
		named = 500
	}
	if w.Code >= 500 && w.Code != named {
		t.Errorf("%+v: answers %d to %v: %s", in, w.Code, spy.err, w.Body)
	}
	path, _, _ := strings.Cut(in.target, "?")
	if w.Code >= 500 && !json.Valid(w.Body.Bytes()) && in.method != http.MethodHead {
		t.Errorf("%s: answers %d without its name: %q", path, w.Code, w.Body)
	}
	if w.Body.Len() > 1<<20 {
		t.Errorf("%+v: %d bytes of an answer", in, w.Body.Len())
	}
	isPage := strings.HasPrefix(path, "/console/") || path == "/"
	if of := w.Header().Get("Content-Type"); strings.Contains(of, "html") && !isPage && w.Code != http.StatusMovedPermanently && w.Code != http.StatusTemporaryRedirect {
		t.Errorf("%+v: an answer is %s", in, of)
	}
	if bytes.Contains(w.Body.Bytes(), []byte(fuzzToken)) && !strings.Contains(in.target+in.host+string(in.body), fuzzToken) {
		t.Errorf("%+v: the answer has the token", in)
	}
}

// checkAccess checks who may read and act.
func checkAccess(t *testing.T, in *fuzzRequest, spy *relaySpy, w *httptest.ResponseRecorder, tokens bool) {
	t.Helper()
	reaches := spy.read+spy.acted > 0 || strings.Contains(w.Body.String(), "detail") && w.Code == http.StatusOK && !strings.HasPrefix(in.target, "/console/") && !isPage(w)
	isOperator := in.authorization[max(0, len(in.authorization)-len(fuzzToken)):] == fuzzToken
	switch isViewer := strings.HasSuffix(in.authorization, fuzzViewer); {
	case tokens && reaches && !isOperator && !isViewer:
		t.Errorf("%+v: %d reads and %d actions without a token: %d", in, spy.read, spy.acted, w.Code)
	case tokens && spy.acted > 0 && !isOperator:
		t.Errorf("%+v: a viewer acts", in)
	case !tokens && reaches && foreign(in.host):
		t.Errorf("%+v: %d reads and %d actions under a foreign Host: %d", in, spy.read, spy.acted, w.Code)
	case !tokens && foreign(in.host) && w.Code != http.StatusForbidden:
		t.Errorf("%+v: a foreign Host gets %d", in, w.Code)
	}
	if spy.acted == 0 {
		if tokens == isOperator && in.site == "" && in.origin == "" && isOwnHost(in.host) && w.Code == http.StatusForbidden {
			t.Errorf("%+v: a local request is forbidden: %s", in, w.Body)
		}
		return
	}
	from, err := url.Parse(in.origin)
	switch {
	case in.method != http.MethodPost:
		t.Errorf("%+v: an action by %s", in, in.method)
	case in.site != "" && in.site != "same-origin" && in.site != "none":
		t.Errorf("%+v: an action from another site", in)
	case in.site == "" && in.origin != "" && (err != nil || from.Host != in.host):
		t.Errorf("%+v: an action from another origin", in)
	}
}

func isPage(w *httptest.ResponseRecorder) bool {
	return strings.Contains(w.Header().Get("Content-Type"), "html")
}

// foreign reports whether a Host header names another machine: a name with a dot that is not the
// relay's, in its usual form.
func foreign(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, ":8090"))
	return strings.Contains(name, ".") && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz.") == "" && name != "relay.example" && !strings.HasSuffix(name, "localhost")
}

// TestBodiesAreBounded: an endless body is refused.
func TestBodiesAreBounded(t *testing.T) {
	_, handler := fuzzed(true)
	sent := &readBytes{Reader: &loop{text: []byte(`{"a":`)}} // without an end
	r := httptest.NewRequest(http.MethodPost, "/api/v1/reload", sent)
	r.Host = "relay.example"
	r.Header.Set("Authorization", "Bearer "+fuzzToken)
	w := httptest.NewRecorder()
	began := time.Now()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge || sent.n > 2<<20 {
		t.Errorf("an endless body gets %d after %d bytes and %s, want 413", w.Code, sent.n, time.Since(began))
	}
}
