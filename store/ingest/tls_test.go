package ingest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ingest"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	_, a.key = a.sign("ca", a.cert)
	return a
}

// sign writes NAME.pem and NAME.key, and returns the certificate and its key.
func (a *authority) sign(name string, c *x509.Certificate) (tls.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key // of itself
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	err = errors.Join(err,
		os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// A client is known by a name of its certificate, by its token, or by both if it has both.
func TestClientCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	ca.sign("server", &x509.Certificate{SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	client := func(of *authority, names ...string) []tls.Certificate {
		c, _ := of.sign("client", &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "common"}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return []tls.Certificate{c}
	}
	f := serve(t, func(c *ingest.Config, _ *fakeTable) {
		c.TLS = ingest.TLS{CertFile: ca.file("server.pem"), KeyFile: ca.file("server.key"), ClientCAFile: ca.file("ca.pem")}
		c.Clients = []ingest.Client{
			{Name: "token", Token: ingest.HashToken("token"), Outboxes: []string{"postbox"}},
			{Name: "cert", Certificate: "shop.example", Outboxes: []string{"postbox"}},
			{Name: "common", Certificate: "common", Outboxes: []string{"postbox"}},
			{Name: "both", Token: ingest.HashToken("both"), Certificate: "both.example", Outboxes: []string{"postbox"}},
		}
	})
	roots := x509.NewCertPool()
	authorityPEM, _ := os.ReadFile(ca.file("ca.pem")) // an empty pool trusts nobody
	roots.AppendCertsFromPEM(authorityPEM)
	for name, tt := range map[string]struct {
		shown  []tls.Certificate
		token  string
		status int // 0: the connection is refused
	}{
		"a token":                    {nil, "token", 201},
		"no token":                   {nil, "", 401},
		"a certificate":              {client(ca, "a.example", "shop.example"), "", 201},
		"a common name":              {client(ca), "", 201},
		"a common name beside names": {client(ca, "else.example"), "", 401},
		"another authority":          {client(other, "shop.example"), "token", 0},
		"both":                       {client(ca, "both.example"), "both", 201},
		"both without the token":     {client(ca, "both.example"), "", 401},
		"both without the name":      {nil, "both", 401},
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: tt.shown}}
		f.client, f.url = &http.Client{Transport: transport}, "https://"+f.server.Addr()
		a, err := f.send(ingest.PostboxPath, tt.token, strings.NewReader(message("id", `"`+name+`"`)))
		transport.CloseIdleConnections()
		if tt.status == 0 && err != nil {
			continue
		}
		if err != nil || a.status != tt.status {
			t.Errorf("%s: answer %+v %v, want %d", name, a, err, tt.status)
		}
	}
}

// What is wrong with a file is said with its key, before the server listens.
func TestUnusableCertificates(t *testing.T) {
	ca := newAuthority(t)
	for key, of := range map[string]ingest.TLS{
		"ingest.tls.cert-file":      {CertFile: ca.file("ca.pem"), KeyFile: ca.file("nowhere")},
		"ingest.tls.client-ca-file": {CertFile: ca.file("ca.pem"), KeyFile: ca.file("ca.key"), ClientCAFile: ca.file("ca.key")},
	} {
		c := config()
		c.TLS = of
		_, err := ingest.New(ingest.Options{Config: c})
		if setup := (*store.SetupError)(nil); !errors.As(err, &setup) || !strings.HasPrefix(setup.Problem, key) {
			t.Errorf("%s: error %v", key, err)
		}
	}
}

// Each mistake in a configuration names its key.
func TestValidate(t *testing.T) {
	for want, change := range map[string]func(c *ingest.Config){
		`listen is "8443"`:                     func(c *ingest.Config) { c.Listen = "8443" },
		"tls needs both":                       func(c *ingest.Config) { c.TLS.CertFile = "a" },
		"tls.client-ca-file needs cert-file":   func(c *ingest.Config) { c.TLS.ClientCAFile = "a" },
		"max-payload is 0":                     func(c *ingest.Config) { c.MaxPayload = 0 },
		"max-lag is 0s":                        func(c *ingest.Config) { c.MaxLag = 0 },
		"max-memory is 1048576 bytes":          func(c *ingest.Config) { c.MaxMemory = 1 << 20 },
		"max-connections is 0":                 func(c *ingest.Config) { c.MaxConnections = 0 },
		"read-timeout is -1s":                  func(c *ingest.Config) { c.ReadTimeout = -time.Second },
		"clients is required":                  func(c *ingest.Config) { c.Clients = nil },
		"clients[1].name is required":          func(c *ingest.Config) { c.Clients[1].Name = "" },
		`clients[1].name is "shop"`:            func(c *ingest.Config) { c.Clients[1].Name = "shop" },
		"clients[1].token is required":         func(c *ingest.Config) { c.Clients[1].Token = nil },
		"clients[1].token is that of another":  func(c *ingest.Config) { c.Clients[1].Token = ingest.HashToken("shop-token") },
		"clients[0].certificate needs":         func(c *ingest.Config) { c.Clients[0].Certificate = "a" },
		"clients[1].outboxes is required":      func(c *ingest.Config) { c.Clients[1].Outboxes = nil },
		`clients[1].outboxes[0] is "nowhere"`:  func(c *ingest.Config) { c.Clients[1].Outboxes = []string{"nowhere"} },
		"which has no table to write into":     func(c *ingest.Config) { c.Outboxes[2].MessagePrefix = "a" },
		"clients[1].tenants does not go with ": func(c *ingest.Config) { c.Clients[1].Tenants = []int{1} },
	} {
		c := config()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	c := config()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
