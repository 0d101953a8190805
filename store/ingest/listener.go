package ingest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/sluicebox/sluicebox/store"
)

// limitedListener accepts a connection once fewer than the limit are open. Others wait in the
// system's queue.
type limitedListener struct {
	net.Listener
	slots chan struct{}
	ended chan struct{}
	once  sync.Once
}

func newLimitedListener(l net.Listener, limit int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, limit), ended: make(chan struct{})}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: conn, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return l.Listener.Close()
}

// limitedConn frees its slot when it is closed.
type limitedConn struct {
	net.Conn
	free func()
}

func (c *limitedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// load reads the files, nil if there are none. A client without a token needs a certificate; if
// no client has a token alone, each connection does.
func (t *TLS) load(clients []Client) (*tls.Config, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	fail := func(key string, err error) error {
		return &store.SetupError{Problem: fmt.Sprintf("ingest.tls.%s: %v", key, err), Remedy: "name a readable PEM file"}
	}
	own, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fail("cert-file", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own}}
	if t.ClientCAFile == "" {
		return c, nil
	}
	pem, err := os.ReadFile(t.ClientCAFile)
	if err != nil {
		return nil, fail("client-ca-file", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fail("client-ca-file", errors.New(t.ClientCAFile+" contains no PEM certificate"))
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if slices.ContainsFunc(clients, func(c Client) bool { return c.Certificate == "" }) {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c, nil
}
