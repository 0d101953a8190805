package servers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// TLS restarts the server with TLS for localhost and 127.0.0.1, and returns the file of the
// CA that signed its certificate. The test is skipped if the server is built without TLS,
// as version 18 is.
func (s *Server) TLS() (caFile string) {
	s.tb.Helper()
	var library string
	conn := Connect(s.tb, s.URL)
	if err := conn.QueryRow(s.tb.Context(), "SHOW ssl_library").Scan(&library); err != nil {
		s.tb.Fatal(err)
	}

	closeConn(conn)
	if library == "" {
		s.tb.Skipf("these programs of PostgreSQL %d are built without TLS", s.version)
	}

	caFile, certFile, keyFile := s.certify()
	s.Restart(map[string]string{"ssl": "on", "ssl_cert_file": certFile, "ssl_key_file": keyFile})
	return caFile
}

// certificates returns a CA and a server's certificate and key, in PEM.
func certificates(tb testing.TB) (ca, cert, key string) {
	tb.Helper()
	caKey, serverKey := newKey(tb), newKey(tb)
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sluicebox test authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}

	server := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "localhost"},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    authority.NotBefore,
		NotAfter:     authority.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}

	der, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		tb.Fatal(err)
	}

	return sign(tb, authority, authority, caKey, caKey),
		sign(tb, server, authority, serverKey, caKey),
		encode("PRIVATE KEY", der)
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func sign(tb testing.TB, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) string {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	return encode("CERTIFICATE", der)
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
