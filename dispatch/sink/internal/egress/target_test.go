package egress_test

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
)

func hosts(t testing.TB, entries ...string) egress.Hosts {
	t.Helper()
	h, err := egress.Parse(entries)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestTarget(t *testing.T) {
	h := hosts(t, "hooks.example", "*.customers.example", "other.example:8443", "10.1.0.0/16", "10.2.3.4:8080", "[fd00::1]:8443", "private:hooks.internal", "93.184.216.34")
	for text, origin := range map[string]string{
		"https://hooks.example/a?key=b":           "https://hooks.example",
		"HTTPS://Hooks.Example:443":               "https://hooks.example",
		"http://hooks.example:80/":                "http://hooks.example",
		"https://a.customers.example":             "https://a.customers.example",
		"https://b.a.customers.example?x":         "https://b.a.customers.example",
		"https://xn--bcher-kva.customers.example": "https://xn--bcher-kva.customers.example",
		"https://other.example:8443/x":            "https://other.example:8443",
		"http://10.1.255.255/":                    "http://10.1.255.255",
		"http://10.2.3.4:8080/":                   "http://10.2.3.4:8080",
		"https://[fd00:0:0::1]:8443/":             "https://[fd00::1]:8443",
		"https://hooks.internal/":                 "https://hooks.internal",
		"https://93.184.216.34/":                  "https://93.184.216.34",
		"https://hooks.example/a@b:c":             "https://hooks.example",
	} {
		if to, reason := h.Target(text); reason != "" || to.Origin != origin {
			t.Errorf("%s: got %q, %q, want %q", text, to.Origin, reason, origin)
		}
	}

	for text, reason := range map[string]string{
		"":                                   "does not begin with http",
		"ftp://hooks.example/":               "does not begin with http",
		"//hooks.example/":                   "does not begin with http",
		"javascript:alert(1)//://":           "does not begin with http",
		" https://hooks.example/":            "does not begin with http",
		"https://evil.example/":              "host evil.example is not in allow-hosts",
		"https://customers.example/":         "host customers.example is not in allow-hosts",
		"https://evilcustomers.example/":     "host evilcustomers.example is not in allow-hosts",
		"https://hooks.example.evil.test/":   "not in allow-hosts",
		"https://hooks.example:8443/":        "host hooks.example is in allow-hosts, but not with port 8443; write hooks.example:8443",
		"http://hooks.example:443/":          "host hooks.example is in allow-hosts, but not with port 443; write hooks.example:443",
		"https://other.example/":             "host other.example is in allow-hosts, but not with port 443; write other.example:443",
		"http://10.2.3.4/":                   "host 10.2.3.4 is in allow-hosts, but not with port 80; write 10.2.3.4:80",
		"http://127.0.0.1/":                  "host 127.0.0.1 is not in allow-hosts",
		"https://hooks.example@evil.test/":   "has a user or password",
		"https://user:pw@hooks.example/":     "has a user or password",
		`https://evil.test\@hooks.example/`:  "has a backslash",
		`https://hooks.example\.evil.test/`:  "has a backslash",
		"https://hooks.example#@evil.test/":  "has a fragment",
		"https://hooks%2eexample/":           "has no host in its usual form",
		"https://hooks.example%00.evil.test": "has no host in its usual form",
		"https://hooks.example\r\nHost: x/":  "has a space, a line break",
		"https://hooks.example/a b":          "has a space, a line break",
		"https://hooks。example/":             "has a space, a line break",
		"https://hооks.example/":             "has a space, a line break", // Cyrillic
		"https://hooks.example./":            "has no host in its usual form",
		"https://hooks..example/":            "has no host in its usual form",
		"https:///":                          "has no host in its usual form",
		"https://hooks.example:/":            "has no port",
		"https://hooks.example:0443/":        "has no port",
		"https://hooks.example:443:80/":      "has no port",
		"https://hooks.example:99999/":       "has no port",
		"https://hooks.example:+443/":        "has no port",
		"http://2130706433/":                 "it ends in a number",
		"http://0x7f000001/":                 "it ends in a number",
		"http://0177.0.0.1/":                 "it ends in a number",
		"http://127.1/":                      "it ends in a number",
		"http://10.1.0x1.0x1/":               "it ends in a number",
		"http://010.1.0.1/":                  "it ends in a number",
		"http://[::ffff:10.1.0.1]/":          "has brackets",
		"http://[::ffff:0a01:0001]/":         "has brackets",
		"http://[64:ff9b::10.1.0.1]/":        "has brackets",
		"http://[fd00::1%25eth0]:8443/":      "has brackets",
		"http://[fd00::1/":                   "has brackets",
		"http://[fd00::1]8443/":              "has no port",
		"https://hooks.example/%zz":          "is no URL",
	} {
		if to, got := h.Target(text); !strings.Contains(got, reason) || got == "" {
			t.Errorf("%q: got %q to %q, want %q", text, got, to.Origin, reason)
		}
	}
}

// Any host means any host of the public Internet.
func TestAnyHostIsPublic(t *testing.T) {
	h := hosts(t, "*")
	for text, ok := range map[string]bool{
		"https://anything.example/": true, "https://93.184.216.34/": true, "https://[2606:2800:220:1::1]/": true,
		"http://anything.example:8080/": false,
	} {
		if _, reason := h.Target(text); (reason == "") != ok {
			t.Errorf("%s: got %q", text, reason)
		}
	}
	for _, addr := range refusedAddresses() {
		text := "http://" + netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String() + "/"
		if _, reason := h.Target(text); reason == "" {
			t.Errorf("%s is allowed", text)
		}
	}
}

// refusedAddresses are addresses of each kind that no list without them allows.
func refusedAddresses() []string {
	return []string{
		"127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "0.0.0.0", "0.1.2.3",
		"169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255",
		"::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1",
		"2001:db8::1", "::7f00:1", "fec0::1", "100::1",
	}
}

func TestEntriesThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"https://hooks.example": "scheme", "": "is no host", "hooks.example:0": "port", "hooks.example:x": "port", "*.": "is no host", "a.*.example": "is no host",
		"10.0.0.1/8": "bits behind", "private:10.0.0.0/8": "needs no private:", "private:*": "is no host", "127.1": "is no host", "hooks.example/x": "is no address",
		"hooks_example.": "is no host", "bücher.example": "xn--", "[::1]:99999": "port", "fe80::1%eth0": "is no host",
	} {
		if _, err := egress.Parse([]string{"ok.example", text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Whatever a row holds, an address that passes leads to a listed host, as net/url reads it.
func FuzzTarget(f *testing.F) {
	for _, text := range []string{
		"https://hooks.example/a?b", "https://a.customers.example:443/", "http://[fd00::1]:8443/", `https://evil\@hooks.example`,
		"https://evil@hooks.example/", "https://hooks.example%2f@evil/", "http://0x7f.1/", "http://127.0.0.1:8080/", "https://hooks.example:443\r\nX: y",
	} {
		f.Add(text)
	}
	h := hosts(f, "hooks.example", "*.customers.example", "127.0.0.1:8080", "[fd00::1]:8443")
	f.Fuzz(func(t *testing.T, text string) {
		to, reason := h.Target(text)
		if reason != "" {
			if strings.ContainsAny(reason, "\r\n@\\") {
				t.Errorf("%q: the reason %q quotes it", text, reason)
			}
			return
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatalf("%q passes: %v", text, err)
		}
		host, port := strings.ToLower(u.Hostname()), u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		named := (host == "hooks.example" || strings.HasSuffix(host, ".customers.example")) && port == map[string]string{"http": "80", "https": "443"}[u.Scheme]
		addr, _ := netip.ParseAddr(host)
		listed := host == "127.0.0.1" && port == "8080" || addr == netip.MustParseAddr("fd00::1") && port == "8443"
		if !named && !listed || u.User != nil || u.Fragment != "" || strings.ContainsAny(text, "\r\n\\ ") {
			t.Errorf("%q passes with host %q, port %q", text, u.Hostname(), port)
		}
		if o, err := url.Parse(to.Origin); err != nil || o.Path != "" || o.RawQuery != "" || strings.ToLower(o.Scheme) != u.Scheme {
			t.Errorf("%q: origin %q", text, to.Origin)
		}
	})
}

// TestCredentialServices checks that no reason recommends to list the address of a cloud's
// service with credentials.
func TestCredentialServices(t *testing.T) {
	for _, entry := range []string{"*", "169.254.169.254", "10.0.0.1"} {
		_, reason := hosts(t, entry).Target("http://169.254.169.254:8080/latest")
		if reason == "" || strings.Contains(reason, "write") || strings.Contains(reason, "to allow it") {
			t.Errorf("%s: got %q", entry, reason)
		}
	}
	err := &egress.RefusedError{Host: "hooks.example", Addr: netip.MustParseAddr("fd00:ec2::254")}
	if text := err.Error(); strings.Contains(text, "allow-hosts") || !strings.Contains(text, "credentials") {
		t.Errorf("got %q", text)
	}
}
