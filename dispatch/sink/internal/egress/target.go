package egress

import (
	"net/netip"
	"net/url"
	"strings"
)

// Target is the address that a row names.
type Target struct {
	// Origin is its scheme, host and port, for example https://hooks.example or
	// http://10.1.2.3:8080. It holds no secret.
	Origin string

	// URL is the whole address.
	URL *url.URL
}

// Target reads the address of a row. reason is set if the row may not be sent there; it
// does not quote the address, which may hold a key, except for a host in its usual form.
//
// The check is strict, because a text that two readers understand in two ways passes one
// of them: the host must be a name or an address in its usual form, without user, escapes and
// backslashes.
func (h Hosts) Target(text string) (t Target, reason string) {
	scheme, rest, ok := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "http" && scheme != "https" {
		return t, "the address of the row does not begin with http:// or https://"
	}
	if reason := badText(rest); reason != "" {
		return t, "the address of the row " + reason
	}
	authority := rest
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority = rest[:i]
	}
	host, port, addr, reason := splitAuthority(strings.ToLower(authority))
	if reason != "" {
		return t, "the address of the row " + reason
	}

	number, usual := uint16(map[string]int{"http": 80, "https": 443}[scheme]), true
	t.Origin = scheme + "://" + host
	if port != "" {
		n, err := parsePort(port)
		if err != nil {
			return t, "the address of the row " + err.Error()
		}
		usual = n == number
		if number = n; !usual {
			t.Origin += ":" + port
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Opaque != "" || !strings.EqualFold(u.Host, authority) || !strings.EqualFold(u.Scheme, scheme) {
		return t, "the address of the row is no URL"
	}
	t.URL = u
	if !h.allows(host, addr, number, usual) {
		return t, h.refusal(host, addr, strings.TrimPrefix(t.Origin, scheme+"://"), number)
	}
	if addr.IsValid() && !h.permits(host, addr) {
		return t, (&RefusedError{Host: host, Addr: addr}).Error()
	}
	return t, ""
}

// badText returns why a text behind the scheme is no address, "" if it may be one.
func badText(rest string) (reason string) {
	for i := range len(rest) {
		switch c := rest[i]; {
		case c <= ' ' || c > '~':
			return "has a space, a line break or a character outside ASCII, which must be percent-encoded (a host: xn--…)"
		case c == '\\':
			return "has a backslash"
		case c == '#':
			return "has a fragment (#), which is never sent"
		}
	}
	return ""
}

// splitAuthority splits the text between // and the path. addr is valid if the host is an
// address.
func splitAuthority(text string) (host, port string, addr netip.Addr, reason string) {
	if strings.Contains(text, "@") {
		return "", "", addr, "has a user or password"
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		literal, behind, closed := strings.Cut(inner, "]")
		addr, err := netip.ParseAddr(literal)
		if !closed || err != nil || !addr.Is6() || addr.Is4In6() || addr.Zone() != "" || strings.Contains(literal, ".") {
			return "", "", addr, "has brackets without an address of IPv6 in its usual form"
		}
		port, hasPort := strings.CutPrefix(behind, ":")
		if behind != "" && !hasPort || hasPort && port == "" {
			return "", "", addr, "has no port behind its host"
		}
		return "[" + addr.String() + "]", port, addr, ""
	}
	host, port, hasPort := strings.Cut(text, ":")
	if hasPort && port == "" {
		return "", "", addr, "has no port behind its host"
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return host, port, addr, ""
	}
	if reason := badName(host); reason != "" {
		return "", "", addr, "has no host in its usual form: " + reason
	}
	return host, port, addr, ""
}
