package ingest

import (
	"crypto/sha256"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config configures a Server.
type Config struct {
	// Listen is host:port. Port 0 picks a free one.
	Listen string
	TLS    TLS
	// Clients are the programs that may send rows, at least one.
	Clients []Client
	// MaxPayload is the largest payload of a row in bytes. A body may have twice that and
	// 64 KiB, because JSON escapes characters.
	MaxPayload int64
	// MaxLag is how long rows may wait for their delivery before further ones are refused; see
	// progress.
	MaxLag time.Duration
	// MaxMemory limits the bytes of all requests in flight.
	MaxMemory int64
	// MaxConnections limits the connections, each with one request at a time.
	MaxConnections int
	// ReadTimeout limits the time in which a request has to arrive.
	ReadTimeout time.Duration
	// Outboxes are the outboxes of the relay.
	Outboxes []store.Outbox
}

// TLS names PEM files. Without CertFile the server speaks plain HTTP.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile has the authorities of the clients' certificates. Without it, no client shows
	// one.
	ClientCAFile string
}

// Client is a program that may send rows. It shows its token, its certificate, or both if both
// are set.
type Client struct {
	Name string
	// Token is the hash of a bearer token, nil for none; see HashToken.
	Token *[sha256.Size]byte
	// Certificate is a DNS name or URI of the client's certificate, or its common name.
	Certificate string
	// Outboxes are the names of the outboxes that the client may write.
	Outboxes []string
	// Tenants are the first parts of the groups that the client may write, of outboxes whose
	// groups have several parts. None: all.
	Tenants []int
}

// HashToken returns the hash of a token, nil for "". Hashes of equal length let tokens be
// compared in constant time.
func HashToken(token string) *[sha256.Size]byte {
	if token == "" {
		return nil
	}
	hash := sha256.Sum256([]byte(token))
	return &hash
}

// DefaultConfig returns the defaults. Listen, TLS, Clients and Outboxes remain to be set.
func DefaultConfig() Config {
	return Config{
		MaxPayload: 10 << 20, MaxLag: 10 * time.Minute, MaxMemory: 128 << 20, MaxConnections: 1000, ReadTimeout: 30 * time.Second,
	}
}

// bodySlack is what a body may have beside its payload and the escapes in it.
const bodySlack = 64 << 10

// maxBody is the largest body in bytes, after decompression.
func (c *Config) maxBody() int64 { return 2*c.MaxPayload + bodySlack }

// memoryFactor is the memory that a request needs for each byte of its body: the body, which is
// copied while it grows, and the rows that are decoded from it.
const memoryFactor = 2

// Validate reports every invalid value by its configuration key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		bad.Add("listen", "is %q, must be host:port such as 0.0.0.0:8443", c.Listen)
	}
	if c.TLS.CertFile == "" && c.TLS.KeyFile != "" || c.TLS.CertFile != "" && c.TLS.KeyFile == "" {
		bad.Add("tls", "needs both cert-file and key-file; name the other one too")
	}
	if c.TLS.ClientCAFile != "" && c.TLS.CertFile == "" {
		bad.Add("tls.client-ca-file", "needs cert-file and key-file, because certificates are shown in TLS only")
	}
	if c.MaxPayload < 1 {
		bad.Add("max-payload", "is %d, must be at least 1B", c.MaxPayload)
	}
	if c.MaxLag <= 0 {
		bad.Add("max-lag", "is %s, must be above 0s", c.MaxLag)
	}
	if least := memoryFactor * (c.maxBody() + 1); c.MaxPayload > 0 && c.MaxMemory < least {
		bad.Add("max-memory", "is %d bytes, must be at least %d for one request with max-payload", c.MaxMemory, least)
	}
	if c.MaxConnections < 1 {
		bad.Add("max-connections", "is %d, must be at least 1", c.MaxConnections)
	}
	if c.ReadTimeout <= 0 {
		bad.Add("read-timeout", "is %s, must be above 0s", c.ReadTimeout)
	}
	if len(c.Clients) == 0 {
		bad.Add("clients", "is required; write who may send rows: [{name: shop, token: '${file:/run/secrets/shop}', outboxes: [orders]}]")
	}
	for i := range c.Clients {
		c.validateClient(&bad, i)
	}
	return bad.Err()
}

// validateClient validates one client.
func (c *Config) validateClient(bad *store.FieldErrors, i int) {
	of, path := &c.Clients[i], "clients["+strconv.Itoa(i)+"]."
	same := func(equal func(other *Client) bool) bool {
		return slices.ContainsFunc(c.Clients[:i], func(other Client) bool { return equal(&other) })
	}
	switch {
	case of.Name == "":
		bad.Add(path+"name", "is required; it names the client in the log")
	case same(func(other *Client) bool { return other.Name == of.Name }):
		bad.Add(path+"name", "is %q, as of another client", of.Name)
	}
	switch {
	case of.Token == nil && of.Certificate == "":
		bad.Add(path+"token", "is required, unless certificate names the client's certificate")
	case same(func(other *Client) bool {
		return (of.Token == nil) == (other.Token == nil) && (of.Token == nil || *of.Token == *other.Token) && of.Certificate == other.Certificate
	}):
		bad.Add(path+"token", "is that of another client; give each client its own")
	}
	if of.Certificate != "" && c.TLS.ClientCAFile == "" {
		bad.Add(path+"certificate", "needs ingest.tls.client-ca-file, the authorities of the clients' certificates")
	}
	if len(of.Outboxes) == 0 {
		bad.Add(path+"outboxes", "is required; name the outboxes that the client may write")
	}
	for k, name := range of.Outboxes {
		key := path + "outboxes[" + strconv.Itoa(k) + "]"
		switch o := c.outbox(name); {
		case o == nil:
			bad.Add(key, "is %q, but no outbox has this name", name)
		case o.MessagePrefix != "":
			bad.Add(key, "is %q, which has no table to write into; services emit its messages", name)
		case len(of.Tenants) > 0 && !hasTenants(o):
			bad.Add(path+"tenants", "does not go with outbox %s, whose groups have no tenant in front; a group over several columns has", name)
		}
	}
}

// outbox returns an outbox by its name, nil if there is none.
func (c *Config) outbox(name string) *store.Outbox {
	i := slices.IndexFunc(c.Outboxes, func(o store.Outbox) bool { return o.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Outboxes[i]
}

// hasTenants reports whether the first part of a group is its tenant.
func hasTenants(o *store.Outbox) bool { return len(o.Layout.GroupRest) > 0 }

// postboxLayout is the layout of the tables that the postbox route writes.
const postboxLayout = "postbox"
