package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// startURI starts a receiver that records the last request's address, without its host.
func startURI(t *testing.T) (base string, uri *string) {
	t.Helper()
	uri = new(string)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { *uri = r.RequestURI }))
	t.Cleanup(srv.Close)
	return srv.URL, uri
}

// A value of a row stays within its segment of the path or its parameter of the query.
func TestAddressOfFields(t *testing.T) {
	base, uri := startURI(t)
	s := newSink(t, webhook.Config{URL: sink.Secret(base + "/a%2Fb/{kind}/{attr.tenant}?group={group}&id={id}&fixed=x%20y")})
	for name, c := range map[string]struct{ tenant, group, want, reason string }{
		"plain":         {"t", "g", "/a%2Fb/K/t?group=g&id=7&fixed=x%20y", ""},
		"escaped":       {"a/b?c#d e%", "a&b=c d/é", "/a%2Fb/K/a%2Fb%3Fc%23d%20e%25?group=a%26b%3Dc+d%2F%C3%A9&id=7&fixed=x%20y", ""},
		"parent":        {"..", "g", "", "not sent: a value of the row makes . or .. a part of the address"},
		"same":          {".", "g", "", "not sent: a value of the row makes . or .. a part of the address"},
		"dots in query": {"t", "..", "/a%2Fb/K/t?group=..&id=7&fixed=x%20y", ""},
		"line break":    {"a\r\nHost: x", "g", "/a%2Fb/K/a%0D%0AHost:%20x?group=g&id=7&fixed=x%20y", ""},
		"missing":       {"NULL", "g", "", "not sent: row has no attr.tenant, which url needs"},
	} {
		*uri = ""
		m := sink.Message{ID: "7", Kind: "K", Group: store.GroupOf(c.group)}
		if c.tenant != "NULL" {
			m.Attributes = store.Attributes{{Name: "tenant", Value: c.tenant}}
		}
		res := s.Deliver(t.Context(), []sink.Message{m})
		if want := map[bool]sink.Class{true: sink.Delivered, false: sink.Rejected}[c.reason == ""]; res.Class != want ||
			*uri != c.want || !strings.HasPrefix(res.Detail, c.reason) {
			t.Errorf("%s: %s, address %q: %s", name, res.Class, *uri, res.Detail)
		}
	}
}

// A row's own address is used if its host is allowed and public or listed. The error names no
// more of the address than its host.
func TestAddressOfTheRow(t *testing.T) {
	base, uri := startURI(t)
	port := base[strings.LastIndexByte(base, ':'):]
	send := func(s *webhook.Sink, to string) sink.Result {
		*uri = ""
		return s.Deliver(t.Context(), []sink.Message{{ID: "7", Attributes: store.Attributes{{Name: "url", Value: to}}}})
	}
	cfg := webhook.Config{URL: "{attr.url}", AllowHosts: []string{"127.0.0.1", "*.shop.example"}, AllowNetworks: []string{"127.0.0.1/32"}}
	s := newSink(t, cfg)
	if res := send(s, base+"/x?key=y"); res.Class != sink.Delivered || *uri != "/x?key=y" {
		t.Errorf("%s, address %q: %s", res.Class, *uri, res.Detail)
	}

	for to, want := range map[string]string{
		"http://localhost" + port + "/" + canary: `not sent: host "localhost" of the row's address is not in allow-hosts`,
		"http://user:" + canary + "@127.0.0.1/":  "not sent: the row's address contains a user or password",
		"file:///" + canary:                      `not sent: the row's address has scheme "file"`,
		"//127.0.0.1/" + canary:                  `not sent: the row's address has scheme ""`,
		"http:///" + canary:                      "not sent: the row's address has no host",
		"http://127.0.0.1:x/" + canary:           "not sent: the row's address is not a URL",
		"http://shop.example/" + canary:          `not sent: host "shop.example" of the row's address is not in allow-hosts`,
		"":                                       `not sent: the row's address has scheme ""`,
	} {
		res := send(s, to)
		if res.Class != sink.Rejected || *uri != "" || !strings.HasPrefix(res.Detail, want) || strings.Contains(res.Detail, canary) {
			t.Errorf("%s: %s: %s", to, res.Class, res.Detail)
		}
	}

	cfg.AllowNetworks = nil
	if res := send(newSink(t, cfg), base+"/"+canary); res.Class != sink.Rejected || *uri != "" ||
		!strings.HasPrefix(res.Detail, "POST "+base+": ") || !strings.Contains(res.Detail, "the row's host has the address 127.0.0.1, which is not public") || strings.Contains(res.Detail, canary) {
		t.Errorf("loopback: %s: %s", res.Class, res.Detail)
	}
	if res := newSink(t, cfg).Probe(t.Context(), ""); res.Class != sink.Refused || !strings.HasPrefix(res.Detail, "each row has an address of its own") {
		t.Errorf("probe: %s: %s", res.Class, res.Detail)
	}
}

// Whatever a row holds, the request goes to the host of the configuration.
func FuzzAddressOfFields(f *testing.F) {
	f.Add("a", "b")
	f.Add("../..", "&x=y#z")
	f.Add("@evil.example/", "\x00\xff")
	s, err := webhook.New(webhook.Config{URL: "https://h.example/{attr.a}/p?q={attr.b}&r=1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		text, reason := webhook.AddressOf(s, &sink.Message{Attributes: store.Attributes{{Name: "a", Value: a}, {Name: "b", Value: b}}})
		if reason != "" {
			return
		}
		u, err := url.Parse(text)
		if err != nil || u.Host != "h.example" || u.User != nil || u.Fragment != "" || !strings.HasSuffix(u.Path, "/p") ||
			u.Query().Get("q") != b || u.Query().Get("r") != "1" || u.Path != "/"+a+"/p" {
			t.Errorf("%q, %q give %q: %v", a, b, text, err)
		}
	})
}
