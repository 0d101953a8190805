package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Hosts are the hosts that rows may name. The zero value allows none.
type Hosts []Entry

// Entry allows a host, several, or a range of addresses.
type Entry struct {
	name    string       // a host; with below a domain; "*" is any host; "" for addresses
	below   bool         // the names below the domain
	private bool         // the addresses of the name may be private
	addrs   netip.Prefix // addresses
	port    uint16       // 0 is the port of the scheme
}

// privatePrefix marks a name whose addresses may be private.
const privatePrefix = "private:"

// Parse parses entries. An error says which one is invalid.
func Parse(texts []string) (Hosts, error) {
	var all Hosts
	for _, text := range texts {
		e, err := parseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("has %q, which %w", text, err)
		}
		all = append(all, e)
	}
	return all, nil
}

func parseEntry(text string) (e Entry, err error) {
	rest, private := strings.CutPrefix(text, privatePrefix)
	e.private = private
	if strings.Contains(rest, "://") {
		return e, errors.New("is an address with a scheme; write the host alone, for example hooks.example")
	}
	host, port := splitEntry(rest)
	if port != "" {
		if e.port, err = parsePort(port); err != nil {
			return e, err
		}
	}
	if e.addrs, err = parseAddrs(host); err == nil {
		if private {
			return e, errors.New("needs no private:, because a listed address may be private")
		}
		return e, nil
	}
	if strings.Contains(host, "/") {
		return e, err
	}
	e.name = strings.ToLower(host)
	if e.name == "*" && !private {
		return e, nil
	}
	if domain, ok := strings.CutPrefix(e.name, "*."); ok {
		e.name, e.below = domain, true
	}
	if reason := badName(e.name); reason != "" {
		return e, errors.New("is no host, address or range: " + reason)
	}
	return e, nil
}

// splitEntry splits an entry into its host and its port, "" if it has none.
func splitEntry(text string) (host, port string) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		host, port, _ = strings.Cut(inner, "]")
		return host, strings.TrimPrefix(port, ":")
	}
	if strings.Count(text, ":") == 1 {
		host, port, _ = strings.Cut(text, ":")
		return host, port
	}
	return text, "" // a name, or an address of IPv6
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return 0, errors.New("has no port from 1 to 65535")
	}
	return uint16(n), nil
}

// parseAddrs parses an address or a range.
func parseAddrs(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.Masked() != p {
			return p, errors.New("has bits behind the length of its range")
		}
		return p, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, errors.New("is no address or range")
	}
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}

// badName returns why a text is no name of a host, "" if it is one. A name that ends in a
// number is none, because some resolvers read it as an address: 0x7f.1 is 127.0.0.1.
func badName(name string) (reason string) {
	if name == "" || len(name) > 253 {
		return "it is empty or too long"
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return "a part between its dots is empty or too long"
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "it has a character that no name has; write names in other scripts as xn--…"
		}
		last = label
	}
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return "it ends in a number and is no address in its usual form"
	}
	return ""
}

// names reports whether the entry allows a host by its name.
func (e *Entry) names(host string) bool {
	switch {
	case e.name == "*":
		return true
	case e.below:
		return strings.HasSuffix(host, "."+e.name)
	}
	return e.name != "" && host == e.name
}

// allowsPort reports whether the entry allows a port. usual tells that it is the scheme's.
func (e *Entry) allowsPort(port uint16, usual bool) bool {
	return e.port == port || e.port == 0 && usual
}

// allows reports whether a row may name a host, which is an address if addr is valid.
func (h Hosts) allows(host string, addr netip.Addr, port uint16, usual bool) bool {
	for i := range h {
		e := &h[i]
		if !e.allowsPort(port, usual) {
			continue
		}
		if addr.IsValid() && (e.addrs.IsValid() && e.addrs.Contains(addr) || e.name == "*") || !addr.IsValid() && e.names(host) {
			return true
		}
	}
	return false
}

// refusal returns the reason why a row may not name a host. origin is the host as the reason
// shows it, with a port that is not the scheme's.
func (h Hosts) refusal(host string, addr netip.Addr, origin string, port uint16) string {
	for i := range h {
		e := h[i]
		e.port = 0
		if !(Hosts{e}).allows(host, addr, port, true) || addr.IsValid() && !h.permits(host, addr) {
			continue
		}
		text := fmt.Sprintf("host %s is in allow-hosts, but not with port %d", host, port)
		if addr.IsValid() && servesCredentials(addr) {
			return text
		}
		return fmt.Sprintf("%s; write %s:%d", text, host, port)
	}
	return "host " + origin + " is not in allow-hosts"
}

// permits reports whether the relay may connect to an address of a host, which is allowed.
func (h Hosts) permits(host string, addr netip.Addr) bool {
	if addr.Zone() != "" {
		return false
	}
	addr = addr.Unmap()
	if isPublic(addr) {
		return true
	}
	for i := range h {
		e := &h[i]
		if e.addrs.IsValid() && e.addrs.Contains(addr) || e.private && e.names(host) && isPrivate(addr) {
			return true
		}
	}
	return false
}

// Names returns the single hosts of the list, without domains and addresses.
func (h Hosts) Names() (names []string) {
	for i := range h {
		if e := &h[i]; e.name != "" && e.name != "*" && !e.below {
			names = append(names, e.name)
		}
	}
	return names
}
