package webhook_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// rowTo returns a row that names its address.
func rowTo(address string) sink.Message {
	m := row("row-1", "{}")
	m.Attributes = store.Attributes{{Name: "target_url", Value: address}}
	return m
}

// rowsTo is a sink whose rows all name one address and a token. A probe has no row, so another
// sink makes it.
type rowsTo struct {
	*webhook.Sink
	base   string
	prober sink.Prober
}

func (s rowsTo) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	all := make([]sink.Message, len(msgs))
	for i := range msgs {
		all[i] = msgs[i]
		all[i].Attributes = store.Attributes{{Name: "target_url", Value: s.base + "/hook"}, {Name: "token", Value: canary}}
	}
	return s.Sink.Deliver(ctx, all)
}

func (s rowsTo) Probe(ctx context.Context, kind string) sink.Outcome {
	return s.prober.Probe(ctx, kind)
}

func TestSuiteOfRowsThatNameTheirAddress(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Kind: "order.created", StatusOnly: true, StatusOverrides: map[int]sink.Class{410: sink.Misconfigured}, Secret: canary, Variant: true,
		Success: func(int) sinktest.Reply { return sinktest.Reply{Status: http.StatusOK} },
		New: func(tb testing.TB, baseURL string, timeout time.Duration) sink.Sink {
			host := strings.TrimPrefix(baseURL, "http://")
			cfg := webhook.Config{URL: "{attr.target_url}", AllowHosts: []string{host}, Headers: map[string]sink.Secret{"Authorization": "Bearer {attr.token}"}}
			cfg.RequestTimeout, cfg.MaxConnections = timeout, 16
			fixed := webhook.Config{URL: sink.Secret(baseURL + "/hook")}
			fixed.Token, fixed.RequestTimeout = canary, timeout
			return rowsTo{newSink(tb, cfg), baseURL, newSink(tb, fixed)}
		},
	})
}

// The address of a row is sent as it is, or with a path behind it.
func TestAddressOfTheRow(t *testing.T) {
	uri := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { uri = r.RequestURI }))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	for name, c := range map[string]struct{ template, value, want, reason string }{
		"whole":            {"{attr.target_url}", srv.URL + "/a%2Fb//c?key=x%20y&z", "/a%2Fb//c?key=x%20y&z", ""},
		"no path":          {"{attr.target_url}", srv.URL, "/", ""},
		"path behind it":   {"{attr.target_url}/hooks/{id}", srv.URL + "/base", "/base/hooks/row-1", ""},
		"query behind it":  {"{attr.target_url}?id={id}", srv.URL + "/base", "/base?id=row-1", ""},
		"a second query":   {"{attr.target_url}/hooks", srv.URL + "/base?a=b", "", "not sent: the address of the row has a query, but url goes on behind it"},
		"host":             {"http://{attr.target_url}/hooks", host, "/hooks", ""},
		"host and a path":  {"http://{attr.target_url}/hooks", host + "/x", "", "not sent: the host of the row has a slash, a question mark or a # in it"},
		"host and a query": {"http://{attr.target_url}/hooks", host + "?x", "", "not sent: the host of the row has a slash, a question mark or a # in it"},
		"host and a user":  {"http://{attr.target_url}/hooks", "a@" + host, "", "not sent: the address of the row has a user or password"},
		"another host":     {"http://{attr.target_url}/hooks", "evil.example", "", "not sent: host evil.example is not in allow-hosts"},
		"another port":     {"{attr.target_url}", "http://127.0.0.1/secret-key", "", "not sent: host 127.0.0.1 is in allow-hosts, but not with port 80; write 127.0.0.1:80"},
		"empty":            {"{attr.target_url}", "", "", "not sent: the address of the row does not begin with http:// or https://"},
		"line break":       {"{attr.target_url}", srv.URL + "/\r\nX: y", "", "not sent: the address of the row has a space"},
	} {
		uri = ""
		s := newSink(t, webhook.Config{URL: sink.Secret(c.template), AllowHosts: []string{host}})
		res := s.Deliver(t.Context(), []sink.Message{rowTo(c.value)})
		if want := map[bool]sink.Class{true: sink.Delivered, false: sink.Rejected}[c.reason == ""]; res.Class != want ||
			uri != c.want || !strings.HasPrefix(res.Detail, c.reason) || res.Unsent != (c.reason != "") {
			t.Errorf("%s: %s, unsent %v, address %q: %s", name, res.Class, res.Unsent, uri, res.Detail)
		}
		if strings.Contains(res.Detail, "secret-key") {
			t.Errorf("%s: the detail shows the address: %s", name, res.Detail)
		}
	}
	res := newSink(t, webhook.Config{URL: "{attr.target_url}", AllowHosts: []string{host}}).Deliver(t.Context(), []sink.Message{row("1", "{}")})
	if res.Class != sink.Rejected || !strings.Contains(res.Detail, "row has no attr.target_url") {
		t.Errorf("without the attribute: %s, %s", res.Class, res.Detail)
	}
}

// A host is refused by the address that it has when the relay connects. A host that is away or
// unknown is an outage.
func TestHostsThatResolve(t *testing.T) {
	var requests atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(srv.Close)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(srv.URL, "http://"))
	var asked atomic.Int64
	names := func(name string) []netip.Addr {
		loopback, away := []netip.Addr{netip.MustParseAddr("127.0.0.1")}, []netip.Addr{netip.MustParseAddr("127.0.0.2")}
		switch name {
		case "inside.example", "hooks.internal":
			return loopback
		case "away.internal":
			return away
		case "rebinds.example":
			if asked.Add(1) <= 2 {
				return []netip.Addr{netip.MustParseAddr("93.184.216.34")}
			}
			return loopback
		}
		return nil
	}
	cfg := webhook.Config{URL: "{attr.target_url}", AllowHosts: []string{"*.example:" + port, "private:*.internal:" + port, "private:*.internal:1"}}
	cfg.RequestTimeout = 500 * time.Millisecond
	s := newSink(t, cfg)
	webhook.SetResolver(s, sinktest.NewResolver(t, names))
	if res := s.Deliver(t.Context(), []sink.Message{rowTo("http://rebinds.example:" + port)}); res.Class == sink.Delivered {
		t.Error("delivered at the public address") // where nothing answers
	}
	for _, c := range []struct {
		host, detail string
		class        sink.Class
	}{
		{"hooks.internal:" + port, "", sink.Delivered},
		{"inside.example:" + port, "host inside.example has the address 127.0.0.1, which is not public", sink.Rejected},
		{"rebinds.example:" + port, "host rebinds.example has the address 127.0.0.1, which is not public", sink.Rejected},
		{"unknown.example:" + port, "no such host", sink.Unavailable},
		{"away.internal:1", "", sink.Unavailable},
	} {
		res := s.Deliver(t.Context(), []sink.Message{rowTo("http://" + c.host + "/secret-key?token=secret-token")})
		if res.Class != c.class || !strings.Contains(res.Detail, c.detail) || res.Unsent != (c.class == sink.Rejected) ||
			strings.Contains(res.Detail, "secret") {
			t.Errorf("%s: %s, unsent %v: %s, want %s: %s", c.host, res.Class, res.Unsent, res.Detail, c.class, c.detail)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// A detail names the host of the row, and shows neither the rest of its address nor its token.
func TestDetailsOfTheRow(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("cannot " + r.RequestURI + " " + url.QueryEscape(r.RequestURI) + " with " + r.Header.Get("Authorization")))
	}))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	s := newSink(t, webhook.Config{URL: "{attr.target_url}", AllowHosts: []string{host}, Headers: map[string]sink.Secret{"Authorization": "Bearer {attr.token}"}})
	m := rowTo(srv.URL + "/services/T00A-key?token=secret-token")
	m.Attributes = append(m.Attributes, store.Attribute{Name: "token", Value: canary})
	res := s.Deliver(t.Context(), []sink.Message{m})
	if res.Class != sink.Refused || !strings.Contains(res.Detail, "from POST "+srv.URL+": cannot") {
		t.Errorf("%s: %s", res.Class, res.Detail)
	}
	for _, secret := range []string{canary, "T00A", "secret-token"} {
		if strings.Contains(res.Detail, secret) {
			t.Errorf("the detail shows %s: %s", secret, res.Detail)
		}
	}
}

func TestConfigOfHosts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*webhook.Config)
		want   string
	}{
		"no list":          {func(c *webhook.Config) { c.AllowHosts = nil }, "url has a field in its host; list the hosts that rows may name in allow-hosts"},
		"bad entry":        {func(c *webhook.Config) { c.AllowHosts = []string{"https://x"} }, `allow-hosts has "https://x", which is an address with a scheme`},
		"text behind":      {func(c *webhook.Config) { c.URL = "{attr.url}.evil" }, "url begins with a field, which must have a slash"},
		"another scheme":   {func(c *webhook.Config) { c.URL = "ftp://{attr.host}/" }, `url has scheme "ftp"`},
		"a user":           {func(c *webhook.Config) { c.URL = "https://u:secret@{attr.host}/" }, "url contains a user or password"},
		"token":            {func(c *webhook.Config) { c.Token = "secret" }, "token would go to every host that a row names"},
		"OAuth":            {func(c *webhook.Config) { c.OAuth.TokenURL, c.OAuth.ClientID = "https://token.example", "c" }, "oauth gets a token that would go to every host"},
		"client's key":     {func(c *webhook.Config) { c.CertFile, c.KeyFile = "c.pem", "k.pem" }, "cert-file would go to every host"},
		"header":           {func(c *webhook.Config) { c.Headers = map[string]sink.Secret{"X-Key": "secret"} }, "headers.X-Key has a text that would go to every host"},
		"text in a header": {func(c *webhook.Config) { c.Headers = map[string]sink.Secret{"X-Key": "secret-{id}"} }, "headers.X-Key has a text that would go to every host"},
		"several rows":     {func(c *webhook.Config) { c.Format = webhook.FormatJSONArray }, "url has a value of the row; format: json-array sends several rows to one address"},
	} {
		cfg := webhook.Config{URL: "{attr.url}", AllowHosts: []string{"hooks.example"}}
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	ok := webhook.Config{URL: "https://{attr.host}/x", AllowHosts: []string{"*"}, Secrets: []sink.Secret{secretA},
		Headers: map[string]sink.Secret{"Authorization": "Bearer {attr.token}", "X-Tenant": "{attr.tenant}"}}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}

// A probe of an address with fields makes no address up.
func TestProbeOfFields(t *testing.T) {
	var paths []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.Method+" "+r.RequestURI)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	out := newSink(t, webhook.Config{URL: sink.Secret(srv.URL + "/hooks/{attr.tenant}?id={id}")}).Probe(t.Context(), "")
	if out.Class != sink.Delivered || len(paths) != 1 || paths[0] != "HEAD /" || !strings.Contains(out.Detail, "receiver reachable; the path depends on the row") {
		t.Errorf("%s after %q: %s", out.Class, paths, out.Detail)
	}

	host := strings.TrimPrefix(srv.URL, "http://")
	for entries, want := range map[string]struct {
		class sink.Class
		text  string
	}{
		host:                                   {sink.Delivered, "no request sent, because each row names its host"},
		"*,*.customers.example,public.example": {sink.Delivered, "no request sent, because each row names its host; entries of allow-hosts: 3"},
		"private:hooks.internal":               {sink.Delivered, "no request sent"},
		"hooks.internal":                       {sink.Misconfigured, "allow-hosts: host hooks.internal has the address 127.0.0.1, which is not public"},
		"unknown.example":                      {sink.Refused, "allow-hosts: host unknown.example does not resolve"},
	} {
		s := newSink(t, webhook.Config{URL: "{attr.target_url}", AllowHosts: strings.Split(entries, ",")})
		webhook.SetResolver(s, sinktest.NewResolver(t, func(name string) []netip.Addr {
			addr := map[string]string{"public.example": "93.184.216.34", "hooks.internal": "127.0.0.1"}[name]
			if addr == "" {
				return nil
			}
			return []netip.Addr{netip.MustParseAddr(addr)}
		}))
		if out := s.Probe(t.Context(), ""); out.Class != want.class || !strings.Contains(out.Detail, want.text) {
			t.Errorf("%s: %s, %s", entries, out.Class, out.Detail)
		}
	}
	if len(paths) != 1 {
		t.Errorf("probes: %q", paths)
	}
}
