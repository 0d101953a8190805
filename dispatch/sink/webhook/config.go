package webhook

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
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

// maxPrefix leaves most of the id header to the id.
const maxPrefix = 64

// HTTP are the settings of the requests. MaxRequestBytes has no default: the endpoint
// itself answers 413.
type HTTP = httpsink.Settings

// Config configures one endpoint. The zero value of each field except URL stands for
// its default. The tags are the keys of the program's configuration file.
type Config struct {
	// URL is the endpoint, http or https. It may have a query. It is a sink.Secret,
	// because the address of many endpoints contains a key.
	URL sink.Secret `yaml:"url" doc:"Required. The address of the endpoint: https://host[:port]/path. It is treated as a secret, because it may contain a key." placeholder:"https://xxxxx"`

	// Method is POST, the default, or PUT.
	Method string `yaml:"method" doc:"The method of the requests." enum:"POST,PUT"`

	// Secrets sign each request per Standard Webhooks 1.0.0. A secret is whsec_ and
	// the base64 form of 24 to 64 random bytes. Several secrets all sign, so that a
	// receiver can rotate from one to the next. Without secrets, requests are not
	// signed.
	Secrets []sink.Secret `yaml:"secrets" doc:"Keys that sign each request per the Standard Webhooks spec: whsec_ and base64. With several, each request has one signature per key, for rotation. Prefer references: ${file:/run/secrets/key} or ${env:NAME}." placeholder:"whsec_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`

	// Format is FormatRaw, the default, or FormatCloudEvents.
	Format Format `yaml:"format" doc:"raw: the body is the payload. cloudevents: the same, with ce-* headers." enum:"raw,cloudevents"`

	// ContentType is the media type of the payloads. The default is application/json.
	ContentType string `yaml:"content-type" doc:"The content type of the payloads."`

	// CloudEventsSource is the ce-source: a URI reference that identifies this outbox
	// among all producers. FormatCloudEvents requires it.
	CloudEventsSource string `yaml:"cloudevents-source" doc:"With format cloudevents: the ce-source, which identifies this producer, for example /shop/orders."`

	// CloudEventsType is the ce-type. The default is the kind of the row.
	CloudEventsType string `yaml:"cloudevents-type" doc:"With format cloudevents: the ce-type. Empty: the kind of the row."`

	// Headers are sent unchanged with each request. Names that would break the
	// request or the signature are rejected.
	Headers map[string]sink.Secret `yaml:"headers" doc:"Headers of each request, by name. Their values are treated as secrets."`

	// MetadataHeaders lists the facts about a row that are sent: MetadataKind,
	// MetadataGroup, MetadataAttempt. The default is none, because a group may be the
	// name of a customer, for example.
	MetadataHeaders []string `yaml:"metadata-headers" doc:"Headers with data of the row: its kind (Sluicebox-Kind), its message group (Sluicebox-Group), the number of the attempt (Sluicebox-Attempt)." enum:"kind,group,attempt"`

	// IDPrefix is prepended to the row's id in webhook-id, Idempotency-Key and ce-id.
	// Set it for a receiver with rows of two outboxes that drops duplicates by the id
	// alone.
	IDPrefix string `yaml:"id-prefix" doc:"Prefix of the row's id in webhook-id, Idempotency-Key and ce-id, for a receiver with rows of two outboxes."`

	// Treat409AsDelivered makes 409 a delivery. By default it is a failure like any
	// other 4xx, because most receivers report a conflict with it, for example a
	// stale version.
	Treat409AsDelivered bool `yaml:"treat-409-as-delivered" doc:"Whether a response 409 means that the receiver already has the row. Otherwise it counts like any other 4xx."`

	HTTP
}

// DefaultConfig returns the defaults that the README lists. URL remains to be set.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Method = cmp.Or(c.Method, http.MethodPost)
	c.Format = cmp.Or(c.Format, FormatRaw)
	c.ContentType = cmp.Or(c.ContentType, "application/json")
	c.HTTP = httpsink.WithDefaults(c.HTTP)
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

	bad.AddErr(httpsink.CheckSettings(&c.HTTP, "token"))
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
	case err != nil || !httpsink.HeaderValue(c.ContentType):
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
		switch name, _ := metadata(word, &sink.Message{}); {
		case name == "":
			bad.Add(fmt.Sprintf("metadata-headers[%d]", i), "is %q, must be %s, %s or %s", word, MetadataKind, MetadataGroup, MetadataAttempt)
		case slices.Index(c.MetadataHeaders, word) < i:
			bad.Add(fmt.Sprintf("metadata-headers[%d]", i), "repeats %s", word)
		}
	}

	if len(c.IDPrefix) > maxPrefix || !httpsink.VisibleASCII(c.IDPrefix) {
		bad.Add("id-prefix", "is %q, must be at most %d visible ASCII characters", c.IDPrefix, maxPrefix)
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
