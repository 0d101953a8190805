package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// A value of a row stays within its segment of the path or its parameter of the query.
func TestAddressOfFields(t *testing.T) {
	uri := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { uri = r.RequestURI }))
	t.Cleanup(srv.Close)
	s := newSink(t, webhook.Config{URL: sink.Secret(srv.URL + "/a%2Fb/{kind}/{group}?group={group}&id={id}&fixed=x%20y")})
	const leaves = "not sent: a value of the row would lead to another path"
	for name, c := range map[string]struct{ group, want, reason string }{
		"plain":            {"g", "/a%2Fb/K/g?group=g&id=7&fixed=x%20y", ""},
		"escaped":          {"a/b?c#d e%&=é", "/a%2Fb/K/a%2Fb%3Fc%23d%20e%25&=%C3%A9?group=a%2Fb%3Fc%23d+e%25%26%3D%C3%A9&id=7&fixed=x%20y", ""},
		"line break":       {"a\r\nHost: x", "/a%2Fb/K/a%0D%0AHost:%20x?group=a%0D%0AHost%3A+x&id=7&fixed=x%20y", ""},
		"dots in a name":   {"a..b", "/a%2Fb/K/a..b?group=a..b&id=7&fixed=x%20y", ""},
		"parent":           {"..", "", leaves},
		"same":             {".", "", leaves},
		"a path":           {"../../admin", "", leaves},
		"a path behind it": {"a/../b", "", leaves},
		"backslashes":      {`a\..\b`, "", leaves},
		"empty":            {"", "", leaves},
		"missing":          {"NULL", "", "not sent: row has no group, which url needs"},
	} {
		uri = ""
		m := sink.Message{ID: "7", Kind: "K"}
		if c.group != "NULL" {
			m.Group = store.GroupOf(c.group)
		}
		res := s.Deliver(t.Context(), []sink.Message{m})
		if want := map[bool]sink.Class{true: sink.Delivered, false: sink.Rejected}[c.reason == ""]; res.Class != want ||
			uri != c.want || !strings.HasPrefix(res.Detail, c.reason) {
			t.Errorf("%s: %s, address %q: %s", name, res.Class, uri, res.Detail)
		}
	}
}

// Attributes are values of the row like all others.
func TestAddressOfAttributes(t *testing.T) {
	s := newSink(t, webhook.Config{URL: "https://h.example/{attr.tenant}?type={type}"})
	row := func(tenant, typ string) *sink.Message {
		return &sink.Message{ID: "7", Attributes: store.Attributes{{Name: "tenant", Value: tenant}, {Name: "type", Value: typ}}}
	}
	for name, c := range map[string]struct {
		m            *sink.Message
		want, reason string
	}{
		"plain":   {row("a/b", "c d"), "https://h.example/a%2Fb?type=c+d", ""},
		"parent":  {row("..", "c"), "", "a value of the row would lead to another path: it is empty, or has . or .. between slashes"},
		"empty":   {row("", "c"), "", "a value of the row would lead to another path: it is empty, or has . or .. between slashes"},
		"missing": {&sink.Message{ID: "7", Attributes: store.Attributes{{Name: "type", Value: "c"}}}, "", "row has no attr.tenant, which url needs"},
		"long":    {row("a", strings.Repeat("c", 8<<10)), "", "url of 8217 bytes exceeds 8192"},
	} {
		if text, reason := webhook.AddressOf(s, c.m); text != c.want || reason != c.reason {
			t.Errorf("%s: %q, reason %q", name, text, reason)
		}
	}
}

// Whatever a row holds, the request goes to the host, the path and the parameter of the
// configuration, also behind a proxy that decodes and cleans the path.
func FuzzAddressOfFields(f *testing.F) {
	f.Add("a", "b")
	f.Add("../..", "&x=y#z")
	f.Add("@evil.example/", "\x00\xff")
	s, err := webhook.New(webhook.Config{URL: "https://h.example/t/{group}/p?q={attr.q}&r=1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, group, id string) {
		text, reason := webhook.AddressOf(s, &sink.Message{Group: store.GroupOf(group), Attributes: store.Attributes{{Name: "q", Value: id}}})
		if reason != "" {
			return
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatalf("%q, %q give %q: %v", group, id, text, err)
		}
		clean := path.Clean(strings.ReplaceAll(u.Path, `\`, "/"))
		if u.Host != "h.example" || u.User != nil || u.Fragment != "" || !strings.HasPrefix(clean, "/t/") || !strings.HasSuffix(clean, "/p") ||
			u.Query().Get("q") != id || u.Query().Get("r") != "1" || u.Path != "/t/"+group+"/p" {
			t.Errorf("%q, %q give %q", group, id, text)
		}
	})
}
