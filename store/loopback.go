package store

import (
	"net"
	"strings"
)

// Loopback reports whether only this machine reaches a host, without its port:
// 127.0.0.0/8, ::1, localhost, or the path of a Unix socket. TLS is not demanded there.
func Loopback(host string) bool {
	if strings.EqualFold(host, "localhost") || strings.HasPrefix(host, "/") {
		return true
	}
	ip := net.ParseIP(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return ip != nil && ip.IsLoopback()
}
