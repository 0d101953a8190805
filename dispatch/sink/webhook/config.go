package webhook

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/store"
)

// Format is how a request describes its payload.
type Format string

// Formats of a request.
const (
	// FormatRaw: the body is the payload, and no header describes it.
	FormatRaw Format = "raw"

	// FormatCloudEvents: the body is the payload, and ce-* headers describe it
	// (CloudEvents 1.0, HTTP binding, binary content mode).
	FormatCloudEvents Format = "cloudevents"
)

// Values of MetadataHeaders, each with its header.
const (
	MetadataKind    = "kind"    // Sluicebox-Kind
	MetadataGroup   = "group"   // Sluicebox-Group
	MetadataAttempt = "attempt" // Sluicebox-Attempt
)

const (
	defaultContentType    = "application/json"
	defaultRequestTimeout = 30 * time.Second
	defaultMaxConnections = 10
	defaultUserAgent      = "sluicebox"

	// maxPrefix leaves most of the id header to the id.
	maxPrefix = 64
)

// Secret is a text that printing, logging and marshalling do not show. A conversion
// to string yields the text.
type Secret = httpsink.Secret

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

// Config configures one endpoint. The zero value of each field except URL stands for
// its default.
type Config struct {
	// URL is the endpoint, http or https. It may have a query. It is a Secret,
	// because the address of many endpoints contains a key.
	URL Secret

	// Method is POST, the default, or PUT.
	Method string

	// Secrets sign each request per Standard Webhooks 1.0.0. A secret is whsec_ and
	// the base64 form of 24 to 64 random bytes. Several secrets all sign, so that a
	// receiver can rotate from one to the next. Without secrets, requests are not
	// signed.
	Secrets []Secret

	// Format is FormatRaw, the default, or FormatCloudEvents.
	Format Format

	// ContentType is the media type of the payloads. The default is application/json.
	ContentType string

	// CloudEventsSource is the ce-source: a URI reference that identifies this outbox
	// among all producers. FormatCloudEvents requires it.
	CloudEventsSource string

	// CloudEventsType is the ce-type. The default is the kind of the row.
	CloudEventsType string

	// Headers are sent unchanged with each request. Names that would break the
	// request or the signature are rejected.
	Headers map[string]Secret

	// MetadataHeaders lists the facts about a row that are sent: MetadataKind,
	// MetadataGroup, MetadataAttempt. The default is none, because a group may be the
	// name of a customer, for example.
	MetadataHeaders []string

	// IDPrefix is prepended to the row's id in webhook-id, Idempotency-Key and ce-id.
	// Set it for a receiver with rows of two outboxes that drops duplicates by the id
	// alone.
	IDPrefix string

	// Treat409AsDelivered makes 409 a delivery. By default it is a failure like any
	// other 4xx, because most receivers report a conflict with it, for example a
	// stale version.
	Treat409AsDelivered bool

	// Token is sent as bearer token. Empty sends none.
	Token Secret

	// CAFile is a PEM file of authorities to trust instead of the system's.
	CAFile string

	// RequestTimeout bounds an attempt from the dial to the last byte of the
	// response. The default is 30 s.
	RequestTimeout time.Duration

	// MaxConnections is the maximum number of idle connections. Set it to at least
	// the number of senders, else some of them dial for each request. The default is
	// 10.
	MaxConnections int

	// MaxRequestBytes is the maximum size of a payload. A larger payload is rejected
	// without a request. By default there is no bound, and the endpoint itself
	// answers 413.
	MaxRequestBytes int

	// ErrorDetail is how much of a failure the detail shows. The default is
	// ErrorDetailBody.
	ErrorDetail ErrorDetail

	// UserAgent is sent with each request, for example "sluicebox/1.2.3".
	UserAgent string
}

// DefaultConfig returns the defaults that the README lists. URL remains to be set.
func DefaultConfig() Config {
	return Config{
		Method:         http.MethodPost,
		Format:         FormatRaw,
		ContentType:    defaultContentType,
		RequestTimeout: defaultRequestTimeout,
		MaxConnections: defaultMaxConnections,
		UserAgent:      defaultUserAgent,
	}
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Method == "" {
		c.Method = d.Method
	}
	if c.Format == "" {
		c.Format = d.Format
	}
	if c.ContentType == "" {
		c.ContentType = d.ContentType
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

// Validate reports every invalid value by its configuration key. The errors show no
// secret.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if _, err := parseURL(string(c.URL)); err != nil {
		bad.AddErr(err)
	}
	if c.Method != "" && c.Method != http.MethodPost && c.Method != http.MethodPut {
		bad.Add("method", "is %q, must be POST or PUT", c.Method)
	}

	for i, s := range c.Secrets {
		if _, err := parseSecret(string(s)); err != nil {
			bad.Add(fmt.Sprintf("secrets[%d]", i), "%s", err)
		}
	}

	if !httpsink.VisibleASCII(string(c.Token)) {
		bad.Add("token", "contains a space, a line break or a character outside ASCII; check for a trailing newline")
	}

	bad.AddErr(c.ErrorDetail.Check())
	bad.AddErr(httpsink.CheckBounds(c.RequestTimeout, c.MaxConnections, c.MaxRequestBytes))
	c.validateFormat(&bad)
	c.validateHeaders(&bad)
	return bad.Err()
}

// validateFormat checks the fields that describe the payload.
func (c *Config) validateFormat(bad *store.FieldErrors) {
	if c.Format != "" && c.Format != FormatRaw && c.Format != FormatCloudEvents {
		bad.Add("format", "is %q, must be %s or %s", string(c.Format), FormatRaw, FormatCloudEvents)
	}

	media, _, err := mime.ParseMediaType(c.ContentType)
	switch {
	case c.ContentType == "":
	case err != nil || !isHeaderValue(c.ContentType):
		bad.Add("content-type", "is %q, not a media type such as application/json", c.ContentType)
	case c.Format == FormatCloudEvents && strings.HasPrefix(media, "application/cloudevents"):
		// Receivers distinguish the modes by the content type (HTTP binding, section
		// 3).
		bad.Add("content-type", "is %q, so the payload contains the event's attributes; "+
			"set format to %s for such payloads", c.ContentType, FormatRaw)
	}

	if c.Format != FormatCloudEvents {
		if c.CloudEventsSource != "" {
			bad.Add("cloudevents-source", "is for format %s only", FormatCloudEvents)
		}
		if c.CloudEventsType != "" {
			bad.Add("cloudevents-type", "is for format %s only", FormatCloudEvents)
		}
		return
	}

	if c.CloudEventsSource == "" {
		bad.Add("cloudevents-source", "is not set; set it to a URI that identifies this outbox, for example https://shop.example/orders or /shop/orders")
	} else if _, err := url.Parse(c.CloudEventsSource); err != nil || !httpsink.VisibleASCII(c.CloudEventsSource) {
		bad.Add("cloudevents-source", "is %q, not a URI reference such as /shop/orders", c.CloudEventsSource)
	}

	if !httpsink.VisibleASCII(c.CloudEventsType) {
		bad.Add("cloudevents-type", "is %q, must be visible ASCII characters such as com.example.order.created", c.CloudEventsType)
	}
}

// validateHeaders checks the fields for other headers.
func (c *Config) validateHeaders(bad *store.FieldErrors) {
	checkHeaders(bad, c.Headers, c.Token != "")
	for i, word := range c.MetadataHeaders {
		switch {
		case metadataHeader(word) == "":
			bad.Add(fmt.Sprintf("metadata-headers[%d]", i), "is %q, must be %s, %s or %s", word, MetadataKind, MetadataGroup, MetadataAttempt)
		case slices.Index(c.MetadataHeaders, word) < i:
			bad.Add(fmt.Sprintf("metadata-headers[%d]", i), "repeats %s", word)
		}
	}

	if len(c.IDPrefix) > maxPrefix || !httpsink.VisibleASCII(c.IDPrefix) {
		bad.Add("id-prefix", "is %q, must be at most %d visible ASCII characters", c.IDPrefix, maxPrefix)
	}
	if !isHeaderValue(c.UserAgent) {
		bad.Add("user-agent", "%q contains a character that is invalid in a header", c.UserAgent)
	}
}

// parseURL parses the address. Errors never quote it, because it may hold a key.
func parseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, &store.FieldError{Key: "url", Text: "is not set; set it to the address of the endpoint, for example https://hooks.example/orders"}
	}
	if _, err := url.Parse(raw); err != nil {
		return nil, &store.FieldError{Key: "url", Text: "is not a URL such as https://hooks.example/orders"}
	}

	u, err := httpsink.ParseAddress("url", raw, "token")
	if err != nil {
		return nil, err
	}
	if u.Fragment != "" {
		return nil, &store.FieldError{Key: "url", Text: "must not have a fragment (#), because it is never sent"}
	}
	return u, nil
}
