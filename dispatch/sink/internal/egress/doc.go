// Package egress decides which hosts a sink may connect to if rows name them.
//
// A row is not trusted as the configuration is: whoever writes the row, for example a customer
// who registers an address, must not reach the network behind the relay. So there are two
// checks:
//
//   - [Hosts.Target] reads the address of a row. Its host and port must be listed.
//   - [Hosts.Dialer] checks the resolved address when it connects, between the name server
//     and the connection. A name that resolves to another address than a moment ago (DNS
//     rebinding) cannot pass.
//
// An address that is not on the public Internet is refused unless it is listed. That includes
// addresses that carry one of IPv4 in IPv6 (NAT64, 6to4, Teredo), because a translator may lead
// back inside.
//
// # Entries of the list
//
//	hooks.example              this host
//	*.customers.example        all names below it, but not itself
//	*                          any host
//	203.0.113.7, 10.0.0.0/8    an address or a range, private or not
//	private:hooks.internal     a name whose addresses may be private
//
// Behind an entry may stand a port (hooks.example:8443, [fd00::1]:8443). Without it the port
// must be that of the scheme, 80 or 443.
package egress
