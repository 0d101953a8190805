package sinktest

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// NewResolver returns a resolver with a name server of its own, which answers each question
// with the addresses that lookup returns at that moment. Lookup gets the name in lower case,
// without the last dot, and is called from several goroutines. A name without addresses does
// not exist.
func NewResolver(t testing.TB, lookup func(name string) []netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-served })
	go func() {
		defer close(served)
		packet := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			if answer := answerDNS(packet[:n], lookup); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// answerDNS answers a question (RFC 1035, section 4); nil if it is none.
func answerDNS(question []byte, lookup func(name string) []netip.Addr) []byte {
	const header, typeA, typeAAAA = 12, 1, 28
	if len(question) < header {
		return nil
	}
	var labels []string
	at := header
	for at < len(question) && question[at] != 0 {
		end := at + 1 + int(question[at])
		if end > len(question) {
			return nil
		}
		labels = append(labels, string(question[at+1:end]))
		at = end
	}
	at += 1 + 4 // the type and the class
	if at > len(question) {
		return nil
	}
	wanted := binary.BigEndian.Uint16(question[at-4:])
	addrs := lookup(strings.ToLower(strings.Join(labels, ".")))

	answer := bytes.Clone(question[:at])
	flags, count := uint16(0x8180), uint16(0) // a recursive answer
	if len(addrs) == 0 {
		flags |= 3 // no such name
	}
	for _, addr := range addrs {
		if addr.Is4() != (wanted == typeA) || !addr.Is4() && wanted != typeAAAA {
			continue
		}
		count++
		answer = binary.BigEndian.AppendUint16(answer, 0xc000|header) // the name of the question
		answer = binary.BigEndian.AppendUint16(answer, wanted)
		answer = append(answer, 0, 1, 0, 0, 0, 0) // class IN, not to be kept
		answer = binary.BigEndian.AppendUint16(answer, uint16(addr.BitLen()/8))
		answer = append(answer, addr.AsSlice()...)
	}
	binary.BigEndian.PutUint16(answer[2:], flags)
	binary.BigEndian.PutUint16(answer[6:], count)
	binary.BigEndian.PutUint32(answer[8:], 0)
	return answer
}
