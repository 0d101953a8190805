package config

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ingest"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Ingest is the section ingest.
type Ingest struct {
	Listen  string         `yaml:"listen" doc:"Required. host:port that takes rows, not the address of admin."`
	TLS     IngestTLS      `yaml:"tls" doc:"Certificates. Without them the server speaks plain HTTP, for loopback or behind a proxy that ends TLS."`
	Clients []IngestClient `yaml:"clients" doc:"Required. The programs that may send rows."`

	MaxPayload     Size          `yaml:"max-payload" doc:"The largest payload of a row, after decompression. A body may have twice that, because JSON escapes characters."`
	MaxLag         time.Duration `yaml:"max-lag" doc:"How long rows of an outbox may wait for their delivery before requests for it get 429. A replica knows it of rows that it has written itself. Not for tables whose rows keep no state."`
	MaxMemory      Size          `yaml:"max-memory" doc:"The most memory of all requests in flight, at least four times max-payload. Beyond it, requests get 503."`
	MaxConnections int           `yaml:"max-connections" doc:"The most connections, each with one request at a time. Others wait."`
	ReadTimeout    time.Duration `yaml:"read-timeout" doc:"The time in which a request has to arrive. A slower one gets 408."`
}

// IngestTLS is the section ingest.tls.
type IngestTLS struct {
	CertFile     string `yaml:"cert-file" doc:"PEM file of the server's certificate, followed by its issuers. A restart reads it again."`
	KeyFile      string `yaml:"key-file" doc:"PEM file of its key."`
	ClientCAFile string `yaml:"client-ca-file" doc:"PEM file of the CA certificates of the clients, for clients with certificate."`
}

// IngestClient is one entry of ingest.clients.
type IngestClient struct {
	Name        string      `yaml:"name" doc:"Required. The client's name in answers."`
	Token       sink.Secret `yaml:"token" doc:"Bearer token of the client. Required without certificate; with both, the client shows both. Prefer a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	Certificate string      `yaml:"certificate" doc:"A DNS name or URI of the client's certificate or, if it has none of them, its common name."`
	Outboxes    []string    `yaml:"outboxes" doc:"Required. The names of the outboxes that the client may write. The first with layout postbox is that of /api/v1/postbox/ingest."`
	Tenants     []int       `yaml:"tenants" doc:"The tenants that the client may write: the first of several columns of the message group. Empty: all."`
}

// defaultIngest returns the section with default values.
func defaultIngest() Ingest {
	d := ingest.DefaultConfig()
	return Ingest{
		MaxPayload: Size(d.MaxPayload), MaxLag: d.MaxLag, MaxMemory: Size(d.MaxMemory), MaxConnections: d.MaxConnections, ReadTimeout: d.ReadTimeout,
	}
}

// Ingest returns the configuration of the server that takes rows; ok is false if there is none.
func (c *Config) Ingest() (of ingest.Config, ok bool) {
	s := c.Settings.Ingest
	if s == nil {
		return ingest.Config{}, false
	}
	of = ingest.Config{
		Listen: s.Listen, TLS: ingest.TLS(s.TLS), MaxPayload: int64(s.MaxPayload), MaxLag: s.MaxLag, MaxMemory: int64(s.MaxMemory),
		MaxConnections: s.MaxConnections, ReadTimeout: s.ReadTimeout, Outboxes: c.Outboxes(),
	}
	for _, c := range s.Clients {
		of.Clients = append(of.Clients, ingest.Client{
			Name: c.Name, Token: ingest.HashToken(string(c.Token)), Certificate: c.Certificate, Outboxes: c.Outboxes, Tenants: c.Tenants,
		})
	}
	return of, true
}

// IngestWriter returns the writer of the rows, without a connection. application names its
// sessions. Close it when done.
func (c *Config) IngestWriter(application string) (outbox.Writer, error) {
	url := c.Settings.Source.URL
	t, _ := url.databaseType() // checked with the file
	return t.writer(url.Reveal(), application)
}

// DiagnoseIngest checks what the writer of the rows needs of the tables that clients write.
func (c *Config) DiagnoseIngest(ctx context.Context) ([]store.Finding, error) {
	url := c.Settings.Source.URL
	t, _ := url.databaseType()
	var written []*store.Outbox
	for _, o := range c.Outboxes() {
		if slices.ContainsFunc(c.Settings.Ingest.Clients, func(of IngestClient) bool { return slices.Contains(of.Outboxes, o.Name) }) {
			written = append(written, &o)
		}
	}
	return t.diagnoseWriter(ctx, url.Reveal(), "sluicebox doctor", written)
}

// checkIngest validates the section ingest.
func (k *checker) checkIngest(s *Settings) {
	cfg := Config{Settings: *s}
	of, ok := cfg.Ingest()
	if !ok {
		return
	}
	for i, c := range s.Ingest.Clients {
		k.checkToken(fmt.Sprintf("ingest.clients[%d].token", i), c.Token)
	}
	if k.requireValue("ingest.listen", of.Listen, "write host:port, such as 0.0.0.0:8443") && of.Listen == s.Admin.Listen {
		k.fail("ingest.listen", "is %s, the address of admin.listen; give each its own", of.Listen)
	}
	k.failFields("ingest", of.Validate(), func(key string) string { return key })
}
