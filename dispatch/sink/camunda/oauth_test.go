package camunda_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
)

// Both APIs get the token that the endpoint gives for the audience, and a refusal of the client is a
// fault of the configuration.
func TestOAuth(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, secret, _ := r.BasicAuth(); secret != canary || r.PostFormValue("audience") != "zeebe-api" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"access_token":"t1","token_type":"Bearer","expires_in":300}`)
	}))
	t.Cleanup(endpoint.Close)
	rest, g := serveREST(t), serveGRPC(t)
	rest.authorization, g.token = "Bearer t1", "Bearer t1"
	for _, url := range []string{rest.URL + "/engine", "grpc://" + g.addr} {
		for secret, want := range map[sink.Secret]sink.Class{canary: sink.Delivered, "other-secret": sink.Misconfigured} {
			cfg := config(url)
			cfg.OAuth = camunda.OAuth{TokenURL: endpoint.URL, ClientID: "relay", ClientSecret: secret, Audience: "zeebe-api"}
			s := newSink(t, cfg)
			if res := s.Deliver(t.Context(), []sink.Message{row("1")}); res.Class != want {
				t.Errorf("%s: %+v, want %s", url, res, want)
			}
			if out := s.Probe(t.Context(), ""); out.Class != want {
				t.Errorf("%s: the probe: %+v, want %s", url, out, want)
			}
		}
	}
}
