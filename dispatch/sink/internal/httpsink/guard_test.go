package httpsink

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

func TestPublicAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"93.184.215.14": true, "2606:2800:21f:cb07::1": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "0.0.0.0": false, "::": false, "0.1.2.3": false,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "fd00::1": false, "fec0::1": false,
		"169.254.169.254": false, "fe80::1": false, "100.64.0.1": false, "198.18.0.1": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false, "240.0.0.1": false,
		"64:ff9b::7f00:1": false, "2002:7f00:1::": false, "2001:db8::1": false,
		"172.15.255.255": true, "172.32.0.0": true, "100.63.255.255": true, "100.128.0.0": true,
	} {
		if got := public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: public is %t", text, got)
		}
	}
	g := &Guard{}
	for _, address := range []string{"[::ffff:127.0.0.1]:80", "[::ffff:10.0.0.1]:443", "[fe80::1%eth0]:80", "nonsense"} {
		if g.control("tcp", address, nil) == nil {
			t.Errorf("%s passes", address)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	g := &Guard{Hosts: []string{"Hooks.example", "*.shop.example"}}
	for host, want := range map[string]bool{
		"hooks.example": true, "HOOKS.EXAMPLE.": true, "a.shop.example": true, "a.b.shop.example:8443": true,
		"shop.example": false, "xhooks.example": false, "hooks.example.evil": false, "xshop.example": false, "": false,
	} {
		if err := g.Check(&url.URL{Scheme: "https", Host: host}); (err == nil) != want {
			t.Errorf("%q: %v", host, err)
		}
	}
}

// A name that leads into the relay's own network is refused after it was resolved, and the row
// is to blame. A network that is listed may be used.
func TestGuardedRequest(t *testing.T) {
	var requests atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(srv.Close)
	to := strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)

	res := send(t, newTestClient(t, to, Settings{Guard: &Guard{Hosts: []string{"localhost"}}}), to)
	if res.Class != sink.Rejected || !strings.Contains(res.Detail, "which is not public and not in allow-networks") || requests.Load() != 0 {
		t.Errorf("got %s after %d requests: %s", res.Class, requests.Load(), res.Detail)
	}

	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	res = send(t, newTestClient(t, to, Settings{Guard: &Guard{Networks: loopback}}), to)
	if res.Class != sink.Delivered || requests.Load() != 1 {
		t.Errorf("got %s after %d requests: %s", res.Class, requests.Load(), res.Detail)
	}
}
