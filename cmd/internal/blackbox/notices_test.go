package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A receiver that fails opens its circuit breaker: a webhook and a command get a notice, and another
// when it works. The stop of the relay waits for the notices.
func TestNotices(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {backoff: {initial: 20ms, max: 100ms}}\n", func(s *scene) {
		got, file := noticed(s.t), filepath.Join(s.t.TempDir(), "notices")
		s.config += fmt.Sprintf("notices: {raise-after: 0s, clear-after: 0s, webhook: {url: %q}, command: {argv: [/bin/sh, -c, 'cat >> \"$0\"', %q]}}\n", got.URL, file)
		var down atomic.Bool
		down.Store(true)
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			if down.Load() {
				return sinktest.Answer{Status: http.StatusServiceUnavailable}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		s.load(3)
		n := got.next(s.t)
		if n.Event != "breaker-open" || n.State != "raised" || n.Relay != nameFor(s.database) || n.Details.Sink != "flowcatalyst" {
			s.t.Errorf("got %+v", n)
		}
		down.Store(false)
		for open := 1; open > 0; { // each of the two endpoints has a breaker
			switch n := got.next(s.t); {
			case n.Event != "breaker-open":
				s.t.Fatalf("got %+v", n)
			case n.State == "raised":
				open++
			default:
				open--
			}
		}
		s.expectSet()
		expectStop(s.t, r)
		text, err := os.ReadFile(file)
		if err != nil || strings.Count(string(text), `"state":"raised"`) != strings.Count(string(text), `"state":"cleared"`) || !strings.Contains(string(text), `"event":"breaker-open"`) {
			s.t.Errorf("the command got %s, %v", text, err)
		}
	})
}

// notice is a notice as a receiver sees it.
type notice struct {
	Event, State, Relay string
	Details             struct{ Sink string }
}

// noticeReceiver is a webhook for notices.
type noticeReceiver struct {
	*httptest.Server
	notices chan notice
}

func noticed(t *testing.T) *noticeReceiver {
	t.Helper()
	r := &noticeReceiver{notices: make(chan notice, 100)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var n notice
		if err := json.NewDecoder(req.Body).Decode(&n); err != nil {
			t.Error(err)
		}
		r.notices <- n
	}))
	t.Cleanup(r.Close)
	return r
}

// next waits for a notice.
func (r *noticeReceiver) next(t *testing.T) notice {
	t.Helper()
	select {
	case n := <-r.notices:
		return n
	case <-time.After(testTimeout):
		t.Fatal("no notice")
	}
	return notice{}
}
