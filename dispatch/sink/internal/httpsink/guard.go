package httpsink

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
)

// Guard restricts addresses that come from rows. Whoever can write a row could otherwise
// make the relay send requests to servers that only the relay's own network reaches.
type Guard struct {
	// Hosts are the allowed hosts: a name, or *. and a domain for every name below it.
	Hosts []string

	// Networks are the networks that are allowed although they are not public.
	Networks []netip.Prefix
}

// Check returns an error if the host of an address is not allowed. It names no more of the
// address than the host.
func (g *Guard) Check(u *url.URL) error {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	for _, allowed := range g.Hosts {
		allowed = strings.ToLower(allowed)
		if domain, ok := strings.CutPrefix(allowed, "*."); host == allowed || ok && strings.HasSuffix(host, "."+domain) {
			return nil
		}
	}
	return fmt.Errorf("host %q of the row's address is not in allow-hosts", host)
}

// guardError reports that the address of a row's host is not public.
type guardError struct{ address netip.Addr }

func (e *guardError) Error() string {
	return fmt.Sprintf("the row's host has the address %s, which is not public and not in allow-networks", e.address)
}

// control is a net.Dialer.Control. It sees the address that the name was resolved to, so a
// name that changes its address between two lookups does not pass.
func (g *Guard) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address of the row's host: %w", err)
	}
	addr := to.Addr().Unmap().WithZone("")
	for _, network := range g.Networks {
		if network.Contains(addr) {
			return nil
		}
	}
	if !public(addr) {
		return &guardError{addr}
	}
	return nil
}

// public reports whether an address is one of the public Internet.
func public(addr netip.Addr) bool {
	if !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return false
	}
	for _, network := range reserved() {
		if network.Contains(addr) {
			return false
		}
	}
	return true
}

// reserved returns the networks that are not public, besides those that package netip
// knows (IANA special-purpose address registries). The last three lead to IPv4 addresses.
func reserved() []netip.Prefix {
	list := []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"100::/64", "2001:db8::/32", "fec0::/10", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16",
	}
	networks := make([]netip.Prefix, len(list))
	for i, text := range list {
		networks[i] = netip.MustParsePrefix(text)
	}
	return networks
}

// proxies returns the addresses of the proxies of the environment. A connection to one of
// them passes the guard: there the proxy decides which receivers it connects to.
func proxies() map[string]bool {
	set := map[string]bool{}
	for _, scheme := range []string{"http", "https"} {
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: scheme, Host: "receiver.example"}})
		if err != nil || proxy == nil {
			continue
		}
		port := proxy.Port()
		if port == "" {
			port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[proxy.Scheme]
		}
		if port == "" {
			port = "80"
		}
		set[proxy.Hostname()+":"+port] = true
	}
	return set
}
