package flowcatalyst

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
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

const (
	defaultRequestTimeout = 30 * time.Second
	defaultMaxConnections = 10
	defaultUserAgent      = "sluicebox"
)

// Token is a bearer token. Printing, logging or marshalling it shows "[redacted]". A
// conversion to string yields the token.
type Token = httpsink.Secret

// ErrorDetail is how much of a failed response the row's error column and the log
// show.
type ErrorDetail = httpsink.ErrorDetail

// Values of ErrorDetail.
const (
	// ErrorDetailBody: the status and the beginning of the body.
	ErrorDetailBody = httpsink.ErrorDetailBody

	// ErrorDetailStatus: the status alone, for receivers that quote payloads.
	ErrorDetailStatus = httpsink.ErrorDetailStatus
)

// Config configures one platform. The zero value of each field except BaseURL stands
// for its default.
type Config struct {
	// Wire is the request and response format. The default is WireArray.
	Wire Wire

	// BaseURL is the platform's address, for example https://platform.example. The
	// API's paths are appended to its path.
	BaseURL string

	// Token is sent as bearer token. Empty sends none.
	Token Token

	// OAuth fetches the bearer tokens, unless it is the zero value. It excludes
	// Token.
	OAuth OAuth

	// RequestTimeout bounds an attempt from the dial to the last byte of the
	// response. The default is 30 s.
	RequestTimeout time.Duration

	// MaxConnections is the maximum number of idle connections. Set it to at least
	// the number of senders, else some of them dial for each request. The default is
	// 10.
	MaxConnections int

	// MaxRequestBytes is the maximum size of a body, for every kind. A row that does
	// not fit is rejected without a request. The default is the platform's limit:
	// just under 1 MiB, and 3 MB for dispatch jobs.
	MaxRequestBytes int

	// CAFile is a PEM file of authorities to trust instead of the system's, for the
	// token endpoint too.
	CAFile string

	// ErrorDetail is how much of a failure the detail shows. The default is
	// ErrorDetailBody.
	ErrorDetail ErrorDetail

	// UserAgent is sent with each request, for example "sluicebox/1.2.3".
	UserAgent string
}

// DefaultConfig returns the defaults that the README lists. BaseURL remains to be
// set.
func DefaultConfig() Config {
	return Config{
		Wire:           WireArray,
		RequestTimeout: defaultRequestTimeout,
		MaxConnections: defaultMaxConnections,
		UserAgent:      defaultUserAgent,
	}
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Wire == "" {
		c.Wire = d.Wire
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = d.RequestTimeout
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = d.MaxConnections
	}
	if c.UserAgent == "" {
		c.UserAgent = d.UserAgent
	}
	return c
}

// Validate reports every invalid value by its configuration key. The errors show
// neither the token nor a password.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.Wire != "" && c.Wire != WireArray && c.Wire != WireItems {
		bad.Add("wire", "is %q, must be %s or %s", string(c.Wire), WireArray, WireItems)
	}
	if _, err := parseBaseURL(c.BaseURL); err != nil {
		bad.AddErr(err)
	}

	bad.AddErr(c.ErrorDetail.Check())
	if !httpsink.VisibleASCII(string(c.Token)) {
		bad.Add("api-token", "contains a space, a line break or a character outside ASCII; check for a trailing newline")
	}
	bad.AddErr(c.validateCredentials())
	bad.AddErr(httpsink.CheckBounds(c.RequestTimeout, c.MaxConnections, c.MaxRequestBytes))
	if !httpsink.VisibleASCII(strings.ReplaceAll(c.UserAgent, " ", "")) {
		bad.Add("user-agent", "%q contains a character that is invalid in a header", c.UserAgent)
	}
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
