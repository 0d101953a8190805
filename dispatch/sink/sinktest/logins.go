package sinktest

import (
	"bufio"
	"bytes"
	bits "encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Echo serves a protocol on a port of its own until the end of the test.
func Echo(t *testing.T, serve func(conn net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

// EchoRedis refuses each command with its own text.
func EchoRedis(conn net.Conn) {
	b := make([]byte, 4096)
	for {
		n, err := conn.Read(b)
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(conn, "-WRONGPASS you sent %s\r\n", oneLine(b[:n]))
	}
}

// EchoNATS refuses the login with its own text.
func EchoNATS(conn net.Conn) {
	_, _ = io.WriteString(conn, `INFO {"server_id":"echo","version":"2.12.1","proto":1,"headers":true,"max_payload":1048576,"auth_required":true}`+"\r\n")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil {
		_, _ = fmt.Fprintf(conn, "-ERR 'Refused, you sent %s'\r\n", oneLine([]byte(line)))
	}
}

// EchoAMQP refuses the login with its own text, as a close of the connection (AMQP 0-9-1, section
// 1.4.2).
func EchoAMQP(conn net.Conn) {
	frame := func(payload ...[]byte) {
		var all []byte
		for _, p := range payload {
			all = append(all, p...)
		}
		head := bits.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(all)))
		_, _ = conn.Write(append(append(head, all...), 0xCE))
	}
	long := func(text string) []byte {
		return append(bits.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	b := make([]byte, 4096)
	if _, err := io.ReadFull(conn, b[:8]); err != nil { // the protocol's header
		return
	}
	frame([]byte{0, 10, 0, 10, 0, 9}, long(""), long("PLAIN EXTERNAL"), long("en_US")) // Connection.Start
	if _, err := io.ReadFull(conn, b[:7]); err != nil {
		return
	}
	login := make([]byte, bits.BigEndian.Uint32(b[3:7])+1)
	if _, err := io.ReadFull(conn, login); err != nil {
		return
	}
	text := "ACCESS_REFUSED you sent " + oneLine(login[max(0, len(login)-200):])
	frame([]byte{0, 10, 0, 50, 403 >> 8, 403 & 0xFF, byte(len(text))}, []byte(text), []byte{0, 10, 0, 11}) // Connection.Close
	_, _ = conn.Read(b)
}

// EchoKafka refuses the login with its own text.
func EchoKafka(conn net.Conn) {
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		req := make([]byte, bits.BigEndian.Uint32(head))
		if _, err := io.ReadFull(conn, req); err != nil || len(req) < 8 {
			return
		}
		var resp kmsg.Response
		switch key, version := int16(bits.BigEndian.Uint16(req)), int16(bits.BigEndian.Uint16(req[2:])); key {
		case 18: // ApiVersions
			versions := kmsg.NewPtrApiVersionsResponse()
			for key, most := range map[int16]int16{17: 1, 18: 0, 36: 1, 3: 1} {
				of := kmsg.NewApiVersionsResponseApiKey()
				of.ApiKey, of.MaxVersion = key, most
				versions.ApiKeys = append(versions.ApiKeys, of)
			}
			resp, versions.Version = versions, version
		case 17: // SaslHandshake
			resp = kmsg.NewPtrSASLHandshakeResponse()
			resp.SetVersion(version)
		case 36: // SaslAuthenticate
			text := "you sent " + oneLine(req)
			refused := kmsg.NewPtrSASLAuthenticateResponse()
			refused.ErrorCode, refused.ErrorMessage, refused.Version = 58, &text, version
			resp = refused
		default:
			return
		}
		body := resp.AppendTo(append([]byte(nil), req[4:8]...))
		_, _ = conn.Write(append(bits.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	}
}

// oneLine is a text without control characters, for a message of a protocol.
func oneLine(b []byte) string {
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '\'' {
			return '.'
		}
		return r
	}, b))
}
