// Package tlstest makes certificates, and serves TLS with those that a client must refuse and one that
// it must accept. A client never gets further than the handshake, so no server of the real kind is
// needed.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a CA with the certificates that it signed.
type Authority struct {
	// CAFile is the PEM file of the CA, OtherCAFile that of a CA that signed nothing here. CertFile
	// and KeyFile are those of a client.
	CAFile, OtherCAFile, CertFile, KeyFile string
	CA                                     []byte // content of CAFile

	tb    testing.TB
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	roots *x509.CertPool
}

// Fault is what is wrong with a server.
type Fault string

// Faults.
const (
	None        Fault = "accepted"
	WrongName   Fault = "another name"
	Expired     Fault = "expired"
	TLS11       Fault = "TLS 1.1"
	NeedsClient Fault = "a client certificate is needed"
)

// Handshake is a handshake as the server sees it.
type Handshake struct {
	Err error

	// Client is the name of the client's certificate, "" for none.
	Client string
}

// New makes an authority.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, key: newKey(tb), roots: x509.NewCertPool()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tlstest authority"}, NotBefore: time.Now().Add(-48 * time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.CA = a.sign(a.cert, &a.key.PublicKey)
	a.roots.AppendCertsFromPEM(a.CA)
	a.CAFile = a.file("ca.pem", a.CA)
	other := *a
	other.key = newKey(tb)
	a.OtherCAFile = a.file("other-ca.pem", other.sign(a.cert, &other.key.PublicKey))
	cert, key := a.certificate("client", None)
	a.CertFile, a.KeyFile = a.file("client.pem", cert), a.file("client.key", key)
	return a
}

// Serve serves TLS on 127.0.0.1 until the end of the test. Before the handshake, upgrade speaks the
// beginning of a protocol, unless it is nil. After it the connection ends. The channel has the result
// of each handshake.
func (a *Authority) Serve(fault Fault, upgrade func(net.Conn) error) (address string, handshakes <-chan Handshake) {
	a.tb.Helper()
	own, err := tls.X509KeyPair(a.certificate("127.0.0.1", fault))
	if err != nil {
		a.tb.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, ClientCAs: a.roots}
	switch fault {
	case TLS11:
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 //nolint:gosec // clients must refuse it
	case NeedsClient:
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.tb.Fatal(err)
	}
	results, ended := make(chan Handshake, 100), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case results <- handshake(conn, cfg, upgrade):
			default: // nobody reads them
			}
		}
	}()
	a.tb.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String(), results
}

func handshake(conn net.Conn, cfg *tls.Config, upgrade func(net.Conn) error) (h Handshake) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if upgrade != nil {
		if h.Err = upgrade(conn); h.Err != nil {
			return h
		}
	}
	server := tls.Server(conn, cfg)
	h.Err = server.Handshake()
	if certs := server.ConnectionState().PeerCertificates; len(certs) > 0 {
		h.Client = certs[0].Subject.CommonName
	}
	if h.Err == nil {
		_ = server.Close() // tells the client
	}
	return h
}

// Certificate returns a certificate for localhost and 127.0.0.1, and its key, in PEM. Its common name is
// name.
func (a *Authority) Certificate(name string) (cert, key []byte) {
	a.tb.Helper()
	return a.certificate(name, None)
}

// certificate is Certificate with a fault.
func (a *Authority) certificate(name string, fault Fault) (cert, key []byte) {
	own := newKey(a.tb)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	switch fault {
	case WrongName:
		c.DNSNames, c.IPAddresses = []string{"other.example"}, nil
	case Expired:
		c.NotAfter = time.Now().Add(-time.Hour)
	}
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.tb.Fatal(err)
	}
	return a.sign(c, &own.PublicKey), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (a *Authority) sign(c *x509.Certificate, public *ecdsa.PublicKey) []byte {
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, public, a.key)
	if err != nil {
		a.tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a *Authority) file(name string, content []byte) string {
	path := filepath.Join(a.tb.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		a.tb.Fatal(err)
	}
	return path
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}
