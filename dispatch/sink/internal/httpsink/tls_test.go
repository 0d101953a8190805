package httpsink

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// clientCertificate makes a certificate that signs itself, and writes it and its key to files.
func clientCertificate(t *testing.T) (cert *x509.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if cert, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	return cert, write("cert.pem", "CERTIFICATE", raw), write("key.pem", "PRIVATE KEY", rawKey)
}

// A receiver that asks for a certificate gets it; without one it refuses the connection.
func TestClientCertificate(t *testing.T) {
	cert, certFile, keyFile := clientCertificate(t)
	srv, ca := startTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) != 1 || !r.TLS.PeerCertificates[0].Equal(cert) {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	srv.TLS.ClientAuth, srv.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	srv.TLS.ClientCAs.AddCert(cert)

	if res := send(t, newTestClient(t, srv.URL, Settings{CAFile: ca, CertFile: certFile, KeyFile: keyFile}), srv.URL); res.Class != sink.Delivered {
		t.Errorf("with the certificate: %s: %s", res.Class, res.Detail)
	}
	if res := send(t, newTestClient(t, srv.URL, Settings{CAFile: ca}), srv.URL); res.Class != sink.Unavailable {
		t.Errorf("without a certificate: %s: %s", res.Class, res.Detail)
	}
}

func TestClientCertificateFiles(t *testing.T) {
	_, certFile, keyFile := clientCertificate(t)
	_, _, otherKey := clientCertificate(t)
	for name, c := range map[string]struct{ cert, key, want string }{
		"no certificate": {filepath.Join(t.TempDir(), "none"), keyFile, "cert-file: open "},
		"no key":         {certFile, filepath.Join(t.TempDir(), "none"), "key-file: open "},
		"another key":    {certFile, otherKey, "cert-file: " + certFile + " and key-file " + otherKey + ": tls: private key does not match public key"},
	} {
		_, err := NewClient(&Settings{CertFile: c.cert, KeyFile: c.key}, &url.URL{Scheme: "https", Host: "h"})
		if !errors.As(err, new(*sink.FileError)) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	for _, s := range []Settings{{CertFile: certFile}, {KeyFile: keyFile}} {
		if err := CheckSettings(&s, "token"); err == nil || !strings.Contains(err.Error(), "-file is not set; ") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
