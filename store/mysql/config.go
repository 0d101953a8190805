package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
)

// maxNameBytes is the maximum length of an outbox's name in the relay's tables.
const maxNameBytes = 255

// Config configures a Store.
type Config = store.Settings

// validate reports all problems of the configuration in one error.
func validate(c *Config) error {
	_, err := ParseURL(c.URL, "")
	errs := []error{err, store.ValidateShardName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout), store.RejectMessages(c.Outboxes, "MySQL")}
	for i := range c.Outboxes {
		if name := c.Outboxes[i].Name; len(name) > maxNameBytes {
			errs = append(errs, fmt.Errorf("outbox %.20q…: name has %d bytes, at most %d are allowed", name, len(name), maxNameBytes))
		}
	}
	return errors.Join(errs...)
}

const (
	defaultPort = "3306"
	// connectTimeout is the dial timeout for a host.
	connectTimeout = 5 * time.Second
)

// urlForm shows the format of a URL.
const urlForm = "mysql://user@host:port/database or mariadb://user@host:port/database"

// ParseURL parses a mysql:// or mariadb:// URL; either scheme works with either server.
// The result has a dial timeout and reports the application's name to the server. The
// parameters are:
//
//   - tls, as in go-sql-driver. true, the default, verifies the server's certificate and
//     host name; skip-verify encrypts without verification; preferred does the same if
//     the server supports TLS, and is the default on loopback; false disables TLS. A
//     socket needs none.
//   - tls-ca, tls-cert and tls-key, PEM files: the authority that signed the server's
//     certificate, if the system does not trust it, and a client certificate with its
//     key.
//   - tls-server-name, the name in the certificate if it differs from the host.
//   - socket, the path of a Unix socket. It takes precedence over the host.
//   - allow-cleartext-passwords=true, for accounts that need it; only with TLS or on
//     this machine.
//
// Errors are *store.SetupError and contain no password.
func ParseURL(raw, application string) (*mysql.Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "mysql" && u.Scheme != "mariadb" || u.Opaque != "" {
		return nil, &store.SetupError{
			Problem: "database URL is not of the form " + urlForm,
			Remedy:  "percent-encode special characters in the user name, password and database",
		}
	}

	// After an unescaped ?, # or / the rest could be part of a password.
	if u.Fragment != "" || strings.Contains(u.Path, "@") || strings.Contains(u.RawQuery, "@") {
		return nil, refuseURL("is not of the form "+urlForm, "percent-encode special characters in the user name and password (@ is %40, # is %23, / is %2F, ? is %3F)")
	}

	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, refuseURL("has invalid parameters", "percent-encode special characters in them")
	}

	if err := knownParameters(q); err != nil {
		return nil, err
	}
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	cfg.Timeout = connectTimeout
	cfg.Logger = &mysql.NopLogger{} // errors report everything
	cfg.ClientFoundRows = true      // an UPDATE that changes nothing still matched its row
	cfg.ConnectionAttributes = "program_name:" + attribute(application)

	switch {
	case cfg.DBName == "" || strings.ContainsRune(cfg.DBName, 0):
		return nil, refuseURL("names no database", "write "+urlForm)
	case cfg.User == "":
		return nil, refuseURL("names no user", "write "+urlForm)
	}

	if err := address(cfg, u, q.Get("socket")); err != nil {
		return nil, err
	}
	return cfg, secure(cfg, q, cfg.Net == "unix" || store.Loopback(u.Hostname()))
}

func refuseURL(problem, remedy string) error {
	return &store.SetupError{Problem: "database URL " + problem, Remedy: remedy}
}

// attribute returns a text as the value of a connection attribute.
func attribute(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ',' || r == ':' {
			return '_'
		}
		return r
	}, text)
}

// knownParameters rejects unknown parameters, because a caller may have meant the
// ignored one to secure the connection.
func knownParameters(q url.Values) error {
	known := []string{"tls", "tls-ca", "tls-cert", "tls-key", "tls-server-name", "socket", "allow-cleartext-passwords"}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return refuseURL(fmt.Sprintf("has an unknown parameter: %q", name), "known parameters are "+strings.Join(known, ", "))
		}
		if len(values) != 1 || values[0] == "" {
			return refuseURL("has parameter "+name+" without a value, or twice", "give it one value")
		}
	}
	return nil
}

// address sets the server's address.
func address(cfg *mysql.Config, u *url.URL, socket string) error {
	if socket != "" {
		cfg.Net, cfg.Addr = "unix", socket
		return nil
	}

	host, port := u.Hostname(), u.Port()
	if host == "" || strings.Contains(host, ",") {
		return refuseURL("names no host, or several", "write "+urlForm)
	}

	if port == "" {
		port = defaultPort
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}

	cfg.Net, cfg.Addr = "tcp", host+":"+port
	return nil
}

// secure sets TLS as the URL requests. local means that the server runs on this machine.
func secure(cfg *mysql.Config, q url.Values, local bool) error {
	mode := q.Get("tls")
	files := q.Has("tls-ca") || q.Has("tls-cert") || q.Has("tls-key") || q.Has("tls-server-name")
	switch {
	case mode != "":
	case cfg.Net == "unix":
		mode = "false"
	case local && !files:
		mode = "preferred"
	}
	set := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: q.Get("tls-server-name")}
	switch mode {
	case "", "true":
		if set.ServerName == "" {
			host, _, _ := strings.Cut(cfg.Addr, ":")
			if strings.HasPrefix(cfg.Addr, "[") {
				host, _, _ = strings.Cut(cfg.Addr[1:], "]")
			}
			set.ServerName = host
		}
	case "skip-verify", "preferred":
		set.InsecureSkipVerify = true //nolint:gosec // the user asks for it by name
		cfg.AllowFallbackToPlaintext = mode == "preferred"
	case "false":
		if files {
			return refuseURL("has tls=false and files for TLS", "remove one of the two")
		}
		set = nil
	default:
		return refuseURL(fmt.Sprintf("has tls=%s", mode), "use true, skip-verify, preferred or false")
	}

	cfg.TLS = set
	if cleartext := q.Get("allow-cleartext-passwords"); cleartext == "true" {
		if !local && (set == nil || mode == "preferred") {
			return refuseURL("allows cleartext passwords without TLS", "use tls=true")
		}
		cfg.AllowCleartextPasswords = true
	} else if cleartext != "" && cleartext != "false" {
		return refuseURL("has allow-cleartext-passwords="+cleartext, "use true or false")
	}

	if set == nil {
		return nil
	}
	return certificates(set, q)
}

// certificates reads the files that the URL names.
func certificates(set *tls.Config, q url.Values) error {
	if file := q.Get("tls-ca"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return refuseURL("names tls-ca, which cannot be read: "+err.Error(), "check the path and its rights")
		}
		set.RootCAs = x509.NewCertPool()
		if !set.RootCAs.AppendCertsFromPEM(pem) {
			return refuseURL("names tls-ca="+file+", which contains no PEM certificate", "use the certificate of the authority")
		}
	}

	cert, key := q.Get("tls-cert"), q.Get("tls-key")
	if (cert == "") != (key == "") {
		return refuseURL("has only one of tls-cert and tls-key", "give both")
	}

	if cert == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return refuseURL("names tls-cert and tls-key, which cannot be used: "+err.Error(), "use a certificate and its key in PEM")
	}

	set.Certificates = []tls.Certificate{pair}
	return nil
}

// Ident quotes identifiers and joins them with dots.
func Ident(parts ...string) string {
	quoted := make([]string, len(parts))
	for i, part := range parts {
		quoted[i] = "`" + strings.ReplaceAll(part, "`", "``") + "`"
	}
	return strings.Join(quoted, ".")
}

// TableName returns the outbox's table, quoted, with its schema if it has one.
func TableName(o *store.Outbox) string {
	if o.Schema == "" {
		return Ident(o.Table)
	}
	return Ident(o.Schema, o.Table)
}

// SetPassword makes each connection of a configuration ask for its password, unless of is nil.
func SetPassword(cfg *mysql.Config, of store.Passworder) error {
	if of == nil {
		return nil
	}
	return cfg.Apply(mysql.BeforeConnect(func(ctx context.Context, own *mysql.Config) (err error) {
		own.Passwd, err = of.Password(ctx)
		return err
	}))
}
