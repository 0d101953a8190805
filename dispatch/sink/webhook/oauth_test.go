package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

// The tokens of an endpoint go out with each request and with the probe. A detail shows none.
func TestTokensOfAnEndpoint(t *testing.T) {
	var issued atomic.Int64
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != "relay" || secret != "s3cret" || r.FormValue("scope") != "hooks" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, `{"access_token":"%s-%d","token_type":"Bearer","expires_in":3600}`, canary, issued.Add(1))
	}))
	t.Cleanup(endpoint.Close)
	r := sinktest.NewReceiver(t)
	status := 200
	r.Script(func(req *sinktest.Request) sinktest.Answer {
		token := req.Header.Get("Authorization")
		if token != "Bearer "+canary+"-1" {
			return sinktest.Answer{Status: 401}
		}
		return sinktest.Answer{Status: status, Body: []byte("you sent " + token)}
	})

	oauth := webhook.OAuth{TokenURL: endpoint.URL + "/token", ClientID: "relay", ClientSecret: "s3cret", Scope: "hooks"}
	s := newSink(t, webhook.Config{URL: sink.Secret(r.URL()), OAuth: oauth})
	for range 2 {
		if res := s.Deliver(t.Context(), []sink.Message{row("1", "{}")}); res.Class != sink.Delivered {
			t.Errorf("%s: %s", res.Class, res.Detail)
		}
	}
	if out := s.Probe(t.Context(), ""); out.Class == sink.Misconfigured || issued.Load() != 1 {
		t.Errorf("probe: %s, %d tokens: %s", out.Class, issued.Load(), out.Detail)
	}
	status = 500
	if res := s.Deliver(t.Context(), []sink.Message{row("1", "{}")}); res.Class != sink.Refused || strings.Contains(res.Detail, canary) {
		t.Errorf("%s: %s", res.Class, res.Detail)
	}

	oauth.ClientSecret = "wrong"
	s = newSink(t, webhook.Config{URL: sink.Secret(r.URL()), OAuth: oauth})
	if res := s.Deliver(t.Context(), []sink.Message{row("1", "{}")}); res.Class != sink.Misconfigured {
		t.Errorf("a wrong secret: %s: %s", res.Class, res.Detail)
	}
}
