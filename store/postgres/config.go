package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/tlserror"
)

// Dial timeouts per host. With several hosts the timeout is shorter, because each new
// session begins with the first host: if that one is down, it must not delay the next one
// for long.
const (
	connectTimeout        = 5 * time.Second
	connectTimeoutPerHost = 2 * time.Second
)

// ParseURL parses a postgres:// URL for a session of the relay:
//
//   - sslmode is verify-full, or prefer on loopback, unless the URL sets it.
//   - The dial is bounded by a timeout.
//   - application names the session on the server.
//   - Of several hosts (host1:5432,host2:5432) a connection goes to the first that
//     accepts writes, unless the URL sets target_session_attrs.
//
// Errors are *store.SetupError and contain no password.
func ParseURL(raw, application string) (*pgx.ConnConfig, error) {
	plain, hosts := SplitHosts(raw)
	u, err := url.Parse(plain)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return nil, &store.SetupError{
			Problem: "database URL is not of the form postgres://user@host:port/database",
			Remedy:  "percent-encode special characters in the user name and password",
		}
	}

	q := u.Query()
	chosen := !q.Has("sslmode")
	if chosen {
		q.Set("sslmode", "verify-full")
		u.RawQuery = q.Encode()
	}
	if hosts != "" {
		u.Host = hosts
		if !q.Has("target_session_attrs") {
			q.Set("target_session_attrs", "read-write")
			u.RawQuery = q.Encode()
		}
	}

	cfg, err := pgx.ParseConfig(u.String())
	if err == nil && chosen && local(cfg) && !wantsTLS(q) {
		q.Set("sslmode", "prefer")
		u.RawQuery = q.Encode()
		cfg, err = pgx.ParseConfig(u.String())
	}
	if err != nil {
		return nil, &store.SetupError{Problem: "invalid database URL: " + redact(err, u)}
	}
	if cfg.ConnectTimeout == 0 {
		if cfg.ConnectTimeout = connectTimeout; hosts != "" {
			cfg.ConnectTimeout = connectTimeoutPerHost
		}
	}

	cfg.RuntimeParams["application_name"] = application
	return cfg, nil
}

// SetPassword makes each connection of a configuration ask for its password, unless of is nil. Whoever
// connects with pgconn gives it a copy, because the password is written into the configuration.
func SetPassword(cfg *pgx.ConnConfig, of store.Passworder) {
	if of == nil {
		return
	}
	cfg.AfterNetConnect = func(ctx context.Context, own *pgconn.Config, conn net.Conn) (net.Conn, error) {
		password, err := of.Password(ctx)
		own.Password = password
		return conn, err
	}
}

// local reports whether every host is on this machine. The hosts come from the URL, PGHOST
// or the driver's default.
func local(cfg *pgx.ConnConfig) bool {
	return store.Loopback(cfg.Host) && !slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool { return !store.Loopback(f.Host) })
}

// wantsTLS reports whether a URL sets a TLS parameter beside sslmode. Without verification
// such a parameter would have no effect.
func wantsTLS(q url.Values) bool {
	for name := range q {
		if strings.HasPrefix(name, "ssl") && name != "sslmode" {
			return true
		}
	}
	return false
}

// SplitHosts replaces a host list in a URL by the name host and returns both. net/url
// rejects most lists: it accepts a port only at the last host, and no IPv6. hosts is ""
// if the URL names one host.
func SplitHosts(raw string) (plain, hosts string) {
	scheme, rest, _ := strings.Cut(raw, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	hosts = rest[begin:end]
	if !strings.Contains(hosts, ",") || strings.Contains(hosts, "%") {
		return raw, ""
	}
	return scheme + "://" + rest[:begin] + "host" + rest[end:], hosts
}

// redact removes the password of u from an error's text.
func redact(err error, u *url.URL) string {
	text := err.Error()
	if u.User != nil {
		if pw, ok := u.User.Password(); ok && pw != "" {
			text = strings.ReplaceAll(text, pw, "xxxxx")
		}
	}
	return text
}

// explainTLS explains a failed handshake, and returns other errors unchanged.
func explainTLS(err error) error {
	var setup *store.SetupError
	if err == nil || errors.As(err, &setup) {
		return err
	}
	text, keys := err.Error(), tlserror.Keys{CA: "sslrootcert=FILE", Certificate: "sslcert=FILE and sslkey=FILE"}
	if strings.Contains(text, "x509:") {
		return &store.SetupError{Problem: "server certificate is not trusted: " + text, Remedy: tlserror.Advice(text, keys)}
	}
	return tlserror.Wrap(err, keys)
}

// Explain turns a connection or permission error that a retry cannot fix into a
// *store.SetupError with a remedy. It returns other errors unchanged.
func Explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if err != nil && strings.Contains(err.Error(), "server refused TLS connection") {
			return &store.SetupError{
				Problem: "server does not support TLS",
				Remedy:  "enable TLS on the server, or add ?sslmode=disable to the URL if the network is trusted",
			}
		}
		return explainTLS(err)
	}

	if objection := refusedByPooler(pg); objection != "" {
		return &store.SetupError{Problem: "connection pooler between the relay and the database: " + objection, Remedy: directRemedy}
	}

	switch pg.Code {
	case "28P01", "28000": // invalid_password, invalid_authorization_specification
		return &store.SetupError{
			Problem: "database refuses the login: " + pg.Message,
			Remedy:  "check the user and password of the URL and the server's pg_hba.conf",
		}
	case "3D000": // invalid_catalog_name
		return &store.SetupError{Problem: pg.Message, Remedy: "check the database name in the URL"}
	case "42501": // insufficient_privilege
		return &store.SetupError{
			Problem: pg.Message,
			Remedy:  "grant it to the role: deploy/postgres/roles.sql, own.sql and outbox.sql have a relay's grants, reader.sql has those of a read-only role",
		}
	}

	return err
}

// code returns the SQLSTATE of a server error; "" for any other error.
func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Unreachable reports whether err means that no session could be opened or that it was
// lost, so that a retry may help.
func Unreachable(err error) bool {
	var setup *store.SetupError
	if err == nil || errors.As(Explain(err), &setup) || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrInterrupted) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		// Class 57P: server starting up or shutting down. 53: out of resources. 08:
		// connection. 40: serialization failure or deadlock. 55P03: lock timeout.
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "53") ||
			strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "40") ||
			pg.Code == "55P03" || pg.Code == "25006" // read-only: a standby before its promotion
	}
	return !errors.Is(err, context.Canceled)
}

// asRefused turns an error that concerns a row into a *store.RefusedError: bad data
// (class 22), constraints (23, 44), errors raised by triggers (P0), a row that stays
// locked (55P03), a statement timeout (57014). It passes other errors to Explain.
func asRefused(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	if pg.Code == "55P03" || pg.Code == "57014" || dataError(pg) {
		return &store.RefusedError{Err: err}
	}
	return Explain(err)
}

// asOwnRefused is asRefused for rows of the relay's tables. No other program locks them,
// so a cancelled statement does not mean that it was refused.
func asOwnRefused(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && dataError(pg) {
		return &store.RefusedError{Err: err}
	}
	return explainOwn(err)
}

// dataError reports whether the server rejects a row: bad data, a constraint, a program
// limit, a check option, or RAISE in a trigger.
func dataError(err *pgconn.PgError) bool {
	return len(err.Code) == 5 && slices.Contains([]string{"22", "23", "44", "54", "P0"}, err.Code[:2])
}

// Ident quotes an identifier.
func Ident(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

func ident(name string) string { return Ident(name) }

// TableName returns the outbox's table, quoted, with its schema if it has one. An outbox of
// messages has none, but its statements need a relation.
func TableName(o *store.Outbox) string {
	if o.MessagePrefix != "" {
		return noTable(o)
	}
	if o.Schema == "" {
		return Ident(o.Table)
	}
	return Ident(o.Schema, o.Table)
}

// connect opens a session. The error says what to fix if a retry cannot help.
func connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, ExplainConnect(cfg, err))
	}
	return conn, nil
}

// ExplainConnect is Explain for the error of a failed connect.
func ExplainConnect(cfg *pgx.ConnConfig, err error) error {
	var pg *pgconn.PgError
	if lacksRight(err) && errors.As(err, &pg) && strings.Contains(pg.Message, "for database") {
		return &store.SetupError{
			Problem: pg.Message,
			Remedy:  fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", Ident(cfg.Database), Ident(cfg.User)),
		}
	}
	return Explain(err)
}

// Config configures a Store.
type Config = store.Settings

// validate reports every problem of the configuration in one error.
func validate(c *Config) error {
	_, err := ParseURL(c.URL, "")
	return errors.Join(err, store.ValidateShardName(c.Name), store.ValidateOutboxes(c.Outboxes, c.TakeoverTimeout))
}
