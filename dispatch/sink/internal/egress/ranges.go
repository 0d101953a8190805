package egress

import (
	"net/netip"
	"slices"
)

// The ranges below are those of the registries of IANA for special purposes that are not
// globally reachable. Everything outside 2000::/3 is no public address of IPv6 at all, for
// example 64:ff9b::/96, which translates to IPv4.

// privateRanges are the networks of an organization or a machine.
func privateRanges() []netip.Prefix {
	return prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1/128")
}

// metadata are the addresses of cloud providers outside the link-local ones, which serve
// credentials to whoever asks from inside: AWS, Alibaba, Oracle, Azure.
func metadata() []netip.Prefix {
	return prefixes("fd00:ec2::254/128", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32")
}

// special are the other ranges that are not public.
func special() []netip.Prefix {
	return prefixes(
		"0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	)
}

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

func in(ranges []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// isPublic reports whether an address is one of the public Internet.
func isPublic(addr netip.Addr) bool {
	global := addr.Is4() || netip.MustParsePrefix("2000::/3").Contains(addr)
	return global && !in(privateRanges(), addr) && !in(metadata(), addr) && !in(special(), addr)
}

// isPrivate reports whether an address belongs to a private network or to this machine.
func isPrivate(addr netip.Addr) bool { return in(privateRanges(), addr) && !in(metadata(), addr) }

// servesCredentials reports whether an address may be that of a cloud's service with
// credentials. No reason recommends to allow such an address.
func servesCredentials(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLinkLocalUnicast() || in(metadata(), addr)
}
