package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

// A payload that names its address and has its body, as a dispatch job does, is subject to the same
// list of hosts as an attribute, and its member is sent byte for byte and signed.
func TestPayloadWithAddressAndBody(t *testing.T) {
	r, got := recorded(t)
	host := strings.TrimPrefix(r.URL(), "http://")
	s := newSink(t, webhook.Config{URL: "{payload.url}", Body: "{payload.body}", AllowHosts: []string{host}, Secrets: []sink.Secret{secretA}})
	to := `"url": "` + r.URL() + `/paid?key=secret-key"`
	for name, c := range map[string]struct{ payload, body, reason string }{
		"object":          {`{` + to + `, "body": {"a": 1.50,  "b": "\u00e9"} }`, `{"a": 1.50,  "b": "\u00e9"}`, ""},
		"list":            {`{"body": [1, 2],` + to + `}`, `[1, 2]`, ""},
		"text":            {`{` + to + `, "body": "a \"b\" \u00e9"}`, `a "b" é`, ""},
		"empty text":      {`{` + to + `, "body": ""}`, "", ""},
		"escaped address": {`{"url": "` + strings.ReplaceAll(r.URL(), "/", `\/`) + `", "body": 5}`, "5", ""},
		"no body":         {`{` + to + `}`, "", "not sent: payload is no JSON object with the member body, which body needs"},
		"null":            {`{` + to + `, "body": null}`, "", "not sent: payload is no JSON object with the member body, which body needs"},
		"no address":      {`{"body": {}}`, "", "not sent: row has no payload.url, which url needs"},
		"an object":       {`{"body": {}, "url": {"a": 1}}`, "", "not sent: the address of the row does not begin with http:// or https://"},
		"another host":    {`{"body": {}, "url": "http://169.254.169.254/secret-key"}`, "", "not sent: host 169.254.169.254 is not in allow-hosts"},
		"another case":    {`{"body": {}, "URL": "http://169.254.169.254/secret-key"}`, "", "not sent: row has no payload.url, which url needs"},
		"the last counts": {`{"url": "http://169.254.169.254/", ` + to + `, "body": {}}`, "{}", ""},
		"no JSON":         {`{` + to + `, "body": {}`, "", "not sent: payload is no JSON object with the member body, which body needs"},
		"a list":          {`[{` + to + `, "body": {}}]`, "", "not sent: payload is no JSON object with the member body, which body needs"},
	} {
		before := len(*got)
		res := s.Deliver(t.Context(), []sink.Message{row("job-1", c.payload)})
		if (res.Class == sink.Delivered) != (c.reason == "") || c.reason != "" && (res.Class != sink.Rejected || !strings.HasPrefix(res.Detail, c.reason) || strings.Contains(res.Detail, "secret-key")) {
			t.Errorf("%s: %s: %s", name, res.Class, res.Detail)
		}
		if n := len(*got) - before; n != map[bool]int{true: 1, false: 0}[c.reason == ""] {
			t.Errorf("%s: %d requests", name, n)
		} else if n == 1 && string((*got)[before].Body) != c.body {
			t.Errorf("%s: body %q, want %q", name, (*got)[before].Body, c.body)
		}
	}
	message := row("job-1", `{`+to+`}`)
	other := row("job-2", `{"url": "http://other.example/"}`)
	of := s.Limits("").EndpointOf
	if a, b := of(&message), of(&other); a != r.URL() || b != "" {
		t.Errorf("endpoints %q and %q, want that of the receiver, and none of a host that is not listed", a, b)
	}
}

// Members of the payload are in the path and the query too, escaped, and in no header.
func TestMembersInAnAddress(t *testing.T) {
	uri := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { uri = r.RequestURI }))
	t.Cleanup(srv.Close)
	s := newSink(t, webhook.Config{URL: sink.Secret(srv.URL + "/{payload.shop}/orders?n={payload.order.n}")})
	if res := s.Deliver(t.Context(), []sink.Message{row("1", `{"shop": "a/b c", "order": {"n": 1.50}}`)}); res.Class != sink.Delivered || uri != "/a%2Fb%20c/orders?n=1.50" {
		t.Errorf("%s: %s, address %q", res.Class, res.Detail, uri)
	}
	for want, cfg := range map[string]webhook.Config{
		"headers.X-Shop":                    {URL: "http://x.example", Headers: map[string]sink.Secret{"X-Shop": "{payload.shop}"}},
		"body must be one member":           {URL: "http://x.example", Body: "{payload.a}{payload.b}"},
		"body is for format: raw":           {URL: "http://x.example", Body: "{payload.body}", Format: webhook.FormatJSONArray},
		"has a field in its host":           {URL: "{payload.url}"},
		"url also takes {payload.NAME}":     {URL: "http://x.example/{payload}"},
		"would go to every host that a row": {URL: "{payload.url}", AllowHosts: []string{"*"}, HTTP: webhook.HTTP{Token: "secret"}},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
