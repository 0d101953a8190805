package egress_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// listen accepts connections on loopback and counts them.
func listen(t *testing.T) (port string, accepted *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = &atomic.Int64{}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = conn.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, accepted
}

// dialer returns a dialer whose names have these addresses.
func dialer(t *testing.T, h egress.Hosts, addrs ...string) *egress.Dialer {
	return &egress.Dialer{Hosts: h, Timeout: 5 * time.Second, Resolver: sinktest.NewResolver(t, func(string) (all []netip.Addr) {
		for _, text := range addrs {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	})}
}

// A name is refused by the address that it resolves to when the relay connects.
func TestRefusedAddresses(t *testing.T) {
	port, accepted := listen(t)
	for _, addr := range refusedAddresses() {
		d := dialer(t, hosts(t, "hooks.example", "*"), addr)
		_, err := d.DialContext(t.Context(), "tcp", "hooks.example:"+port)
		var refused *egress.RefusedError
		if addr == "::" {
			addr = "0.0.0.0" // as package net dials it
		}
		if !errors.As(err, &refused) || refused.Host != "hooks.example" || refused.Addr.String() != addr {
			t.Errorf("%s: got %v", addr, err)
		}
		if err := d.Check(t.Context(), "hooks.example"); !errors.As(err, &refused) {
			t.Errorf("%s: checked: %v", addr, err)
		}
	}
	for mapped, plain := range map[string]string{"::ffff:127.0.0.1": "127.0.0.1", "::ffff:169.254.169.254": "169.254.169.254", "::ffff:10.0.0.1": "10.0.0.1", "::ffff:0.0.0.0": "0.0.0.0"} {
		d := dialer(t, hosts(t, "hooks.example", "*"), mapped)
		var refused *egress.RefusedError
		if _, err := d.DialContext(t.Context(), "tcp", "hooks.example:"+port); !errors.As(err, &refused) || refused.Addr.String() != plain {
			t.Errorf("%s: got %v", mapped, err)
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// A list may name private addresses, ranges of them, or a name with such addresses.
func TestListedPrivateAddresses(t *testing.T) {
	port, accepted := listen(t)
	for entry, ok := range map[string]bool{
		"127.0.0.1": true, "127.0.0.0/8": true, "private:hooks.internal": true, "private:*.internal": true,
		"hooks.internal": false, "private:other.internal": false, "10.0.0.0/8": false, "*": false,
	} {
		d := dialer(t, hosts(t, entry), "127.0.0.1")
		conn, err := d.DialContext(t.Context(), "tcp", "hooks.internal:"+port)
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != ok {
			t.Errorf("%s: got %v", entry, err)
		}
	}
	if n := accepted.Load(); n > 4 {
		t.Errorf("%d connections", n)
	}

	// A private name does not open the way to the services of a cloud provider.
	for _, addr := range []string{"169.254.169.254", "fd00:ec2::254", "100.100.100.200", "224.0.0.1", "0.0.0.0"} {
		d := dialer(t, hosts(t, "private:hooks.internal"), addr)
		var refused *egress.RefusedError
		if _, err := d.DialContext(t.Context(), "tcp", "hooks.internal:80"); !errors.As(err, &refused) {
			t.Errorf("%s: got %v", addr, err)
		}
	}
}

// A name that resolves to a public address once, and to loopback when the relay connects,
// reaches nothing. So does one with addresses of both kinds.
func TestRebinding(t *testing.T) {
	port, accepted := listen(t)
	asked := atomic.Int64{}
	d := &egress.Dialer{Hosts: hosts(t, "hooks.example"), Timeout: 200 * time.Millisecond}
	d.Resolver = sinktest.NewResolver(t, func(string) []netip.Addr {
		if asked.Add(1) <= 2 { // A and AAAA of the first lookup
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})
	if err := d.Check(t.Context(), "hooks.example"); err != nil {
		t.Errorf("the first lookup: %v", err)
	}
	var refused *egress.RefusedError
	if _, err := d.DialContext(t.Context(), "tcp", "hooks.example:"+port); !errors.As(err, &refused) {
		t.Errorf("the second lookup: %v", err)
	}

	// 127.0.0.1 is listed and answers; 127.0.0.2 is refused.
	both := dialer(t, hosts(t, "127.0.0.1"), "127.0.0.2", "127.0.0.1")
	conn, err := both.DialContext(t.Context(), "tcp", "hooks.example:"+port)
	if err != nil {
		t.Fatal(err)
	}
	if to := conn.RemoteAddr().String(); !strings.HasPrefix(to, "127.0.0.1:") {
		t.Errorf("connected to %s", to)
	}
	_ = conn.Close()

	// The permitted address is dead: that is an outage, and not a refused address.
	dead := dialer(t, hosts(t, "127.0.0.1"), "127.0.0.2", "127.0.0.1")
	if _, err := dead.DialContext(t.Context(), "tcp", "hooks.example:1"); err == nil || errors.As(err, &refused) {
		t.Errorf("a dead host: %v", err)
	}
	if n := accepted.Load(); n > 1 {
		t.Errorf("%d connections", n)
	}
}

// A name that does not exist is an outage too.
func TestUnknownName(t *testing.T) {
	d := dialer(t, hosts(t, "*"))
	var dns *net.DNSError
	if _, err := d.DialContext(t.Context(), "tcp", "hooks.example:80"); !errors.As(err, &dns) {
		t.Errorf("got %v", err)
	}
}
