package sinktest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// rawServer writes HTTP by hand, for responses that no HTTP library produces.
type rawServer struct {
	url string

	// requests counts the requests that were read completely.
	requests atomic.Int64
}

// rawConn is one connection of a rawServer.
type rawConn struct {
	*net.TCPConn

	// n is the number of the connection's request, from 1.
	n int

	// stop is closed when the test ends.
	stop <-chan struct{}
}

// serveRaw starts a server that reads requests and calls respond for the response.
// The connection is closed when respond returns false.
func serveRaw(tb testing.TB, respond func(*rawConn) bool) *rawServer {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}

	s := &rawServer{url: "http://" + ln.Addr().String()}
	stop := make(chan struct{})
	var open sync.Map
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			open.Store(conn, nil)
			wg.Go(func() {
				defer open.Delete(conn)
				defer func() { _ = conn.Close() }()
				s.converse(&rawConn{TCPConn: conn.(*net.TCPConn), stop: stop}, respond)
			})
		}
	})

	tb.Cleanup(func() {
		close(stop)
		_ = ln.Close()
		open.Range(func(conn, _ any) bool {
			_ = conn.(net.Conn).Close()
			return true
		})
		wg.Wait()
	})

	return s
}

func (s *rawServer) converse(c *rawConn, respond func(*rawConn) bool) {
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		c.n++
		s.requests.Add(1)
		if !respond(c) {
			return
		}
	}
}

// reply writes a complete response.
func (c *rawConn) reply(r Reply) bool {
	_, err := fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		r.Status, r.ContentType, len(r.Body), r.Body)
	return err == nil
}

// reset closes the connection with an RST.
func (c *rawConn) reset() bool {
	_ = c.SetLinger(0)
	_ = c.Close()
	return false
}

// halfClose closes the sending direction and waits for the client to hang up.
func (c *rawConn) halfClose() bool {
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c)
	return false
}

// hang waits for the end of the test or of the connection.
func (c *rawConn) hang() bool {
	_, _ = io.Copy(io.Discard, c)
	return false
}

// deadURL returns an address without a listener.
func deadURL(tb testing.TB) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		tb.Fatal(err)
	}
	return "http://" + ln.Addr().String()
}
