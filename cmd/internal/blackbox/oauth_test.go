package blackbox

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// The relay fetches its bearer token itself, once for all requests. The token endpoint reads
// the client's credentials from the form only, like FlowCatalyst's.
func TestTokensAreFetched(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		var issued atomic.Int32
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, password := r.PostFormValue("client_id"), r.PostFormValue("client_secret")
			if user == "" {
				http.Error(w, `{"error": "invalid_request", "error_description": "Missing client_id"}`, http.StatusBadRequest)
				return
			}
			if user != "relay" || password != "secret" || r.PostFormValue("grant_type") != "client_credentials" {
				http.Error(w, `{"error": "invalid_client"}`, http.StatusUnauthorized)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"access_token": "token-%d", "token_type": "Bearer", "expires_in": 3600}`, issued.Add(1))
		}))
		s.t.Cleanup(tokens.Close)
		s.to.Script(func(req *sinktest.Request) sinktest.Answer {
			if req.Header.Get("Authorization") != "Bearer token-1" {
				return sinktest.Answer{Status: http.StatusUnauthorized}
			}
			return sinktest.Answer{}
		})
		s.config = strings.Replace(s.config, "flowcatalyst: {", "flowcatalyst: {oauth: {token-url: '"+tokens.URL+
			"', client-id: relay, client-secret: secret}, ", 1)
		r := s.run()
		s.load(200)
		s.expectOnce()
		if n := issued.Load(); n != 1 {
			s.t.Errorf("%d tokens were fetched, want 1", n)
		}
		expectStop(s.t, r)
	})
}
