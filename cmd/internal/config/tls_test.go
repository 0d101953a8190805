package config_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/tlstest"
)

// tlsCase is a destination or a database with TLS.
type tlsCase struct {
	// config has ADDRESS, and TLS in place of the keys for its files.
	config string

	// upgrade speaks the protocol up to the handshake; nil for none.
	upgrade func(net.Conn) error

	// files are the keys, or the parameters of the URL: the CA, a certificate, its key.
	ca, cert, key string
}

func tlsCases() map[string]tlsCase {
	sinks := map[string]tlsCase{
		"webhook":  {config: "{type: webhook, url: 'https://ADDRESS/x'TLS}"},
		"platform": {config: "{type: flowcatalyst, api-base-url: 'https://ADDRESS'TLS}"},
		"kafka":    {config: "{type: kafka, brokers: 'ADDRESS', topic: t, tls: trueTLS}"},
		"nats":     {config: "{type: nats, url: 'tls://ADDRESS', subject: sTLS}", upgrade: natsUpgrade},
		"rabbitmq": {config: "{type: rabbitmq, url: 'amqps://u:password@ADDRESS', routing-key: kTLS}"},
		"redis":    {config: "{type: redis, url: 'rediss://ADDRESS', stream: sTLS}"},
		"camunda":  {config: "{type: camunda, url: 'https://ADDRESS', time-to-live: 1h, name: n, correlation-key: kTLS}"},
		"grpc":     {config: "{type: camunda, url: 'grpcs://ADDRESS', time-to-live: 1h, name: n, correlation-key: kTLS}"},
	}
	for name, c := range sinks {
		c.ca, c.cert, c.key = ", ca-file: ", ", cert-file: ", ", key-file: "
		c.config = "source: {url: 'sqlite:x.db'}\noutboxes: [{table: a, layout: outbox-messages, sink: to}]\nsinks:\n  to: " + c.config + "\n"
		sinks[name] = c
	}
	for name, c := range map[string]tlsCase{
		"PostgreSQL": {config: "postgres://u:password@ADDRESS/d?sslmode=verify-fullTLS", upgrade: postgresUpgrade, ca: "&sslrootcert=", cert: "&sslcert=", key: "&sslkey="},
		"MySQL":      {config: "mysql://u:password@ADDRESS/d?tls=trueTLS", upgrade: mysqlUpgrade, ca: "&tls-ca=", cert: "&tls-cert=", key: "&tls-key="},
		"MongoDB":    {config: "mongodb://u:password@ADDRESS/d?tls=true&serverSelectionTimeoutMS=300TLS", ca: "&tlsCAFile=", cert: "&tlsCertificateFile=", key: "&tlsPrivateKeyFile="},
	} {
		c.config = "source: {url: '" + c.config + "'}\noutboxes: [{table: a, layout: outbox-messages, sink: to}]\nsinks: {to: {type: statistics}}\n"
		sinks[name] = c
	}
	return sinks
}

// TestTLSMatrix: every destination and database accepts a certificate of its authority for its name,
// and nothing else. What it refuses, it names with the way out.
func TestTLSMatrix(t *testing.T) {
	t.Parallel()
	for name, c := range tlsCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := tlstest.New(t)
			for _, tt := range []struct {
				what    string
				fault   tlstest.Fault
				trusted string // the CA file, "" for the system's
				shows   bool   // the client's certificate
				final   bool   // a retry does not help
				want    string
			}{
				{"the right CA", tlstest.None, a.CAFile, false, false, ""},
				{"the system's CAs", tlstest.None, "", false, true, "of the CA that issued"},
				{"another CA", tlstest.None, a.OtherCAFile, false, true, "of the CA that issued"},
				{"another name", tlstest.WrongName, a.CAFile, false, true, "by a host name that the certificate"},
				{"expired", tlstest.Expired, a.CAFile, false, true, "renew the certificate"},
				{"TLS 1.1", tlstest.TLS11, a.CAFile, false, false, "enable TLS 1.2"},
				{"no client certificate", tlstest.NeedsClient, a.CAFile, false, false, "needs a client certificate, set"},
				{"a client certificate", tlstest.NeedsClient, a.CAFile, true, false, ""},
			} {
				address, handshakes := a.Serve(tt.fault, c.upgrade)
				files, quote := "", func(s string) string { return s }
				if strings.Contains(c.ca, "&") {
					quote = url.QueryEscape
				}
				if tt.trusted != "" {
					files += c.ca + quote(tt.trusted)
				}
				if tt.shows {
					files += c.cert + quote(a.CertFile) + c.key + quote(a.KeyFile)
				}
				text, misconfigured := tryTLS(t, strings.NewReplacer("ADDRESS", address, "TLS}", files+"}", "TLS'", files+"'").Replace(c.config))
				var last tlstest.Handshake
				select {
				case last = <-handshakes:
				case <-time.After(30 * time.Second):
					t.Fatalf("%s: no handshake: %s", tt.what, text)
				}
				if (last.Err == nil) != (tt.want == "") || tt.shows && last.Client != "client" {
					t.Errorf("%s: the handshake ends with %v, by client %q", tt.what, last.Err, last.Client)
				}
				if !strings.Contains(text, tt.want) || tt.final && !misconfigured {
					t.Errorf("%s: got %q, which must name %q, misconfigured %t", tt.what, text, tt.want, misconfigured)
				}
			}
		})
	}
}

// tryTLS sends a row by the only sink, or opens the database if that is what has TLS. misconfigured
// tells that a retry does not help.
func tryTLS(t *testing.T, text string) (failure string, misconfigured bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if cfg.Settings.Source.URL.SQLite() {
		to, err := cfg.OpenSink("to", "test")
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		res := to.Deliver(ctx, []sink.Message{{ID: "1", Kind: "EVENT", Payload: []byte("{}")}})
		out := res.At(0)
		return out.Detail, out.Class == sink.Misconfigured
	}
	options, err := cfg.Relay("test")
	if err != nil {
		t.Fatal(err)
	}
	st, err := options.Database.Store(store.Settings{Name: "test", Outboxes: cfg.Outboxes()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	_, err = st.AcquireLeadership(ctx)
	setup := (*store.SetupError)(nil)
	if errors.As(err, &setup) {
		return setup.Error(), true
	}
	return fmt.Sprint(err), false
}

// natsUpgrade sends what precedes TLS on a server of NATS.
func natsUpgrade(conn net.Conn) error {
	_, err := io.WriteString(conn, `INFO {"server_id":"x","version":"2.12.1","proto":1,"headers":true,"max_payload":1048576,"tls_required":true}`+"\r\n")
	return err
}

// postgresUpgrade accepts an SSLRequest.
func postgresUpgrade(conn net.Conn) error {
	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
		return err
	}
	_, err := conn.Write([]byte("S"))
	return err
}

// mysqlUpgrade sends the greeting of a server with TLS, and reads the request for it.
func mysqlUpgrade(conn net.Conn) error {
	greeting := "\x0a8.4.0\x00\x01\x00\x00\x00" + "abcdefgh\x00" + // protocol, version, thread, salt
		"\xff\xff\xff\x02\x00\xff\xdf\x15" + strings.Repeat("\x00", 10) + "ijklmnopqrst\x00" + "caching_sha2_password\x00"
	if _, err := conn.Write(append([]byte{byte(len(greeting)), 0, 0, 0}, greeting...)); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 36)) // header and SSLRequest
	return err
}
