package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// RefusedError reports that a host has no address to which the relay may connect.
type RefusedError struct {
	Host string
	Addr netip.Addr // one of its addresses
}

// Error names the host and the address.
func (e *RefusedError) Error() string {
	if servesCredentials(e.Addr) {
		return fmt.Sprintf("host %s has the address %s, at which clouds serve credentials", e.Host, e.Addr)
	}
	if literal := strings.Trim(e.Host, "[]"); literal == e.Addr.String() {
		return "address " + literal + " is not public; list it in allow-hosts to allow it"
	}
	return fmt.Sprintf("host %s has the address %s, which is not public; list the address or %s%s in allow-hosts to allow it",
		e.Host, e.Addr, privatePrefix, e.Host)
}

// Dialer connects to the hosts of a list.
type Dialer struct {
	Hosts   Hosts
	Timeout time.Duration

	// Resolver finds the addresses of names; nil is the system's.
	Resolver *net.Resolver
}

// DialContext connects to a host and port. It connects to no address that is refused, in
// whatever way the host resolved to it. It returns a *RefusedError if the host has no other.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var refused atomic.Pointer[RefusedError]
	var permitted atomic.Bool
	dialer := net.Dialer{Timeout: d.Timeout, Resolver: d.Resolver}
	dialer.ControlContext = func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return err
		}
		if d.Hosts.permits(strings.ToLower(host), to.Addr()) {
			permitted.Store(true)
			return nil
		}
		e := &RefusedError{Host: host, Addr: to.Addr().Unmap()}
		refused.Store(e)
		return e
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if e := refused.Load(); err != nil && e != nil && !permitted.Load() {
		return nil, e
	} else if err != nil && e != nil {
		return nil, errors.New("dial " + host + ": no permitted address answered") // err may be about the refused one
	}
	return conn, err
}

// Check resolves a host and returns a *RefusedError if all its addresses are refused.
func (d *Dialer) Check(ctx context.Context, host string) error {
	resolver := d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addrs, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		if d.Hosts.permits(host, addr) {
			return nil
		}
	}
	return &RefusedError{Host: host, Addr: addrs[0].Unmap()}
}
