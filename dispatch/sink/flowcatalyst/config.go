package flowcatalyst

import (
	"cmp"
	"fmt"
	"net/url"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/store"
)

// Wire is the request and response format of a platform.
type Wire string

// Wires of a platform.
const (
	// WireArray: the body is […], and the body of a success is not specified.
	WireArray Wire = "array"

	// WireItems: the body is {"items":[…]}, and a success has a result for each item.
	WireItems Wire = "items"
)

// Kinds of rows that a platform accepts.
const (
	KindEvent       = "EVENT"
	KindDispatchJob = "DISPATCH_JOB"
	KindAuditLog    = "AUDIT_LOG"
)

// Limits of a platform, measured on one. It answers 400 to more items, and to bodies
// of events and audit logs of 1 MiB. 3 MB of dispatch jobs are known to pass.
const (
	maxEvents    = 1000
	maxJobs      = 1000
	maxAuditLogs = 100

	maxBody     = 1<<20 - 1
	maxJobsBody = 3_000_000
)

// tokenPath is the path of the platform's own token endpoint.
const tokenPath = "/oauth/token"

// OAuth configures a client that fetches its bearer tokens by the client credentials
// grant (RFC 6749, section 4.4). ClientID and ClientSecret are required.
// TokenURL defaults to the platform's own endpoint, BaseURL and /oauth/token. Scope,
// Audience and ClientAuth may be empty.
type OAuth = oauth.Config

// ClientAuth is the method of client authentication.
type ClientAuth = oauth.ClientAuth

// Methods of client authentication (RFC 6749, section 2.3.1).
const (
	// AuthAuto tries HTTP Basic, and the body if the endpoint refuses that. It is the
	// default.
	AuthAuto = oauth.AuthAuto

	// AuthBasic sends id and secret by HTTP Basic.
	AuthBasic = oauth.AuthBasic

	// AuthBody sends client_id and client_secret in the body.
	AuthBody = oauth.AuthBody
)

// HTTP are the settings of the requests. CAFile is for the token endpoint too. The default
// of MaxRequestBytes, for bodies of every kind, is the platform's limit: just under 1 MiB,
// and 3 MB for dispatch jobs.
type HTTP = httpsink.Settings

// Config configures one platform. The zero value of each field except BaseURL stands
// for its default.
type Config struct {
	// Wire is the request and response format. The default is WireArray.
	Wire Wire

	// BaseURL is the platform's address, for example https://platform.example. The
	// API's paths are appended to its path.
	BaseURL string

	// OAuth fetches the bearer tokens, unless it is the zero value. It excludes
	// Token.
	OAuth OAuth

	// Compression is "gzip", or empty for none. Bodies of less than 1 KiB, and those that do not
	// become shorter, are sent as they are.
	Compression string

	HTTP
}

// DefaultConfig returns the defaults that the README lists. BaseURL remains to be
// set.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Wire = cmp.Or(c.Wire, WireArray)
	c.HTTP = httpsink.WithDefaults(c.HTTP)
	return c
}

// Validate reports every invalid value by its configuration key. The errors show
// neither the token nor a password.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.Wire != "" && c.Wire != WireArray && c.Wire != WireItems {
		bad.Add("wire", "is %q, must be %s or %s", string(c.Wire), WireArray, WireItems)
	}
	if c.Compression != "" && c.Compression != httpsink.CompressionGzip {
		bad.Add("compression", "is %q, must be %s", c.Compression, httpsink.CompressionGzip)
	}
	if _, err := parseBaseURL(c.BaseURL); err != nil {
		bad.AddErr(err)
	}

	bad.AddErr(httpsink.CheckSettings(&c.HTTP, "api-token"))
	bad.AddErr(c.OAuth.Check(c.Token, "api-token"))
	return bad.Err()
}

// parseBaseURL parses the address. Errors never quote it whole, because it may hold a
// password.
func parseBaseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, &store.FieldError{Key: "api-base-url", Text: "is not set; set it to the platform's address, for example https://platform.example"}
	}

	u, err := httpsink.ParseAddress("api-base-url", raw, "api-token")
	if err != nil {
		return nil, err
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, &store.FieldError{Key: "api-base-url", Text: "must end with the path, without ? or #"}
	}
	return u, nil
}

// Fields returns nil, because the requests depend on the payloads of their rows only.
func (c *Config) Fields() []sink.Field { return nil }

// CheckKind returns an error if rows of a kind cannot be delivered.
func (c *Config) CheckKind(kind string) error {
	_, err := c.route(kind)
	return err
}

// route is the endpoint of one kind of rows.
type route struct {
	path           string
	prefix, suffix string // text around the payloads
	maxItems       int
	maxBody        int  // bytes of a body, envelope included
	needsResults   bool // a success has a result for each item
}

// name is the request in details.
func (r *route) name() string { return "POST " + r.path }

func (c *Config) route(kind string) (route, error) {
	r := route{prefix: "[", suffix: "]"}
	if c.Wire == WireItems {
		r = route{prefix: `{"items":[`, suffix: "]}", needsResults: true}
	}
	switch {
	case kind == KindEvent:
		r.path, r.maxItems, r.maxBody = "/api/events/batch", maxEvents, maxBody
	case kind == KindDispatchJob && c.Wire == WireItems:
		r.path, r.maxItems, r.maxBody = "/api/dispatch-jobs/batch", maxJobs, maxJobsBody
	case kind == KindDispatchJob:
		r.path, r.maxItems, r.maxBody = "/api/dispatch/jobs/batch", maxJobs, maxJobsBody
	case kind == KindAuditLog && c.Wire == WireItems:
		r.path, r.maxItems, r.maxBody = "/api/audit-logs/batch", maxAuditLogs, maxBody
	case kind == KindAuditLog:
		return route{}, fmt.Errorf("kind %s has no endpoint with wire %s; set wire to %s", kind, WireArray, WireItems)
	default:
		return route{}, fmt.Errorf("kind %q has no endpoint; valid kinds are %s, %s and %s",
			kind, KindEvent, KindDispatchJob, KindAuditLog)
	}

	if c.MaxRequestBytes > 0 {
		r.maxBody = c.MaxRequestBytes
	}
	return r, nil
}
