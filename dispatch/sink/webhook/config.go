package webhook

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
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

	// FormatStructured: the body is an event in JSON with the payload as its data (structured
	// content mode).
	FormatStructured Format = "cloudevents-structured"

	// FormatBatch: the body is a list of such events, one for each row (batched content mode).
	FormatBatch Format = "cloudevents-batch"

	// FormatJSONArray: the body is a list of payloads, which must be JSON.
	FormatJSONArray Format = "json-array"
)

// formats returns all formats.
func formats() []Format {
	return []Format{FormatRaw, FormatCloudEvents, FormatStructured, FormatBatch, FormatJSONArray}
}

// inBody reports whether the attributes of an event are part of the body.
func (f Format) inBody() bool { return f == FormatStructured || f == FormatBatch }

// severalRows reports whether a request may carry several rows.
func (f Format) severalRows() bool { return f == FormatBatch || f == FormatJSONArray }

// mediaType returns the content type of a request, "" for that of the payload.
func (f Format) mediaType() string {
	switch f {
	case FormatStructured:
		return event.MediaType
	case FormatBatch:
		return "application/cloudevents-batch+json; charset=utf-8"
	}
	return ""
}

// Values of MetadataHeaders, each with its header.
const (
	MetadataKind    = "kind"    // Sluicebox-Kind
	MetadataGroup   = "group"   // Sluicebox-Group
	MetadataType    = "type"    // Sluicebox-Type
	MetadataTime    = "time"    // Sluicebox-Time
	MetadataAttempt = "attempt" // Sluicebox-Attempt
)

// CompressionGzip is a value of Compression.
const CompressionGzip = httpsink.CompressionGzip

// A request of several rows has at most so many of them, and by default so many bytes.
const (
	maxBatch      = 1000
	maxBatchBytes = 1 << 20
)

// HTTP are the settings of the requests. MaxRequestBytes has no default: the endpoint
// itself answers 413.
type HTTP = httpsink.Settings

// OAuth configures a client that fetches its bearer tokens by the client credentials grant
// (RFC 6749, section 4.4). TokenURL, ClientID and ClientSecret are required.
type OAuth = oauth.Config

// Config configures one endpoint. The zero value of each field except URL stands for
// its default. The tags are the keys of the program's configuration file.
type Config struct {
	// URL is the endpoint, http or https. It may have a query. It is a sink.Secret,
	// because the address of many endpoints contains a key. It may have fields of the row: in
	// path and query, and with AllowHosts in the host. A field at its beginning has the whole
	// address. {payload.NAME} is a member of a payload that is a JSON object.
	URL sink.Secret `yaml:"url" template:"true" doc:"Required. The address of the endpoint: https://host[:port]/path. Path and query may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}, and {payload.NAME}, a member of a JSON payload; the host or the whole address too, with allow-hosts. It is treated as a secret, because it may contain a key." placeholder:"https://xxxxx"`

	// AllowHosts are the hosts that rows may name; see package egress for its entries. It is
	// required for a URL with a field in its host, and excludes the credentials of the
	// configuration: Token, OAuth, CertFile and texts in Headers.
	AllowHosts []string `yaml:"allow-hosts" doc:"The hosts that rows may name if url has a field in its host, for example '{attr.target_url}': hooks.example, '*.customers.example', '*' for any; an address or a range; each with a port behind it (hooks.example:8443) if it is not the usual one. Addresses that are not public are refused unless listed, or unless the name has private: before it (private:hooks.internal). No effect if the host of url is text."`

	// Method is POST, the default, or PUT.
	Method string `yaml:"method" doc:"The method of the requests." enum:"POST,PUT"`

	// Secrets sign each request per Standard Webhooks 1.0.0. A secret is whsec_ and
	// the base64 form of 24 to 64 random bytes. Several secrets all sign, so that a
	// receiver can rotate from one to the next. Without secrets, requests are not
	// signed.
	Secrets []sink.Secret `yaml:"secrets" doc:"Keys that sign each request per the Standard Webhooks spec: whsec_ and base64. With several, each request has one signature per key, for rotation. Prefer references: ${file:/run/secrets/key} or ${env:NAME}." placeholder:"whsec_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`

	// Format is what a request carries. The default is FormatRaw.
	Format Format `yaml:"format" doc:"raw: the body is the payload. cloudevents: the same, with ce-* headers. cloudevents-structured: the body is an event with the payload as its data. cloudevents-batch, json-array: the body is a list of such events, or of payloads, and a request has several rows." enum:"raw,cloudevents,cloudevents-structured,cloudevents-batch,json-array"`

	// Body is {payload.NAME} for rows whose payload has the body of the request in a member of a JSON
	// object: of a string its characters, of any other value its JSON. Empty: the payload.
	Body string `yaml:"body" template:"true" doc:"{payload.NAME}: the body is this member of a payload that is a JSON object, for example {payload.body} of a dispatch job. Of a string its characters. Only with format raw or cloudevents. Empty: the payload."`

	// ContentType is the media type of the payloads. The default is application/json.
	ContentType string `yaml:"content-type" doc:"The content type of the payloads."`

	// CloudEventsSource is the ce-source: a URI reference that identifies this outbox
	// among all producers. A CloudEvents format requires it.
	CloudEventsSource string `yaml:"cloudevents-source" doc:"Required with a format of CloudEvents: the source of the events, which identifies this producer, for example /shop/orders."`

	// CloudEventsType is the ce-type, a template. The default is {type}, or {kind} for a row
	// without a type.
	CloudEventsType string `yaml:"cloudevents-type" template:"true" doc:"The type of the events, which may have fields of the row, for example com.example.{type}. Empty: the type of the row, or its kind if it has none."`

	// CloudEventsSubject is the ce-subject, a template. The default is {group}.
	CloudEventsSubject string `yaml:"cloudevents-subject" template:"true" doc:"The subject of the events, which may have fields of the row. Empty: the message group."`

	// Headers are sent with each request. A value is a template; a header whose field has
	// no value in a row is not sent with it. Names that would break the request or the
	// signature are rejected. With a CloudEvents format, ce-NAME is an extension of the
	// event. A request of several rows has no other header that depends on a row.
	Headers map[string]sink.Secret `yaml:"headers" template:"true" doc:"Headers of each request, by name. A value may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}; without a value for one of them the header is not sent. {{ and }} are braces. ce-NAME is an extension of a CloudEvent. The values are treated as secrets."`

	// MetadataHeaders lists the facts about a row that are sent, such as MetadataKind. The
	// default is none, because a group may be the name of a customer, for example.
	MetadataHeaders []string `yaml:"metadata-headers" doc:"Headers with data of the row: its kind (Sluicebox-Kind), its message group (Sluicebox-Group), its type (Sluicebox-Type), its time or that of its commit (Sluicebox-Time), the number of the attempt (Sluicebox-Attempt)." enum:"kind,group,type,time,attempt"`

	// Compression is CompressionGzip, or empty for none. Bodies of less than 1 KiB and those
	// that it does not shorten are sent as they are.
	Compression string `yaml:"compression" doc:"gzip compresses the bodies of 1 KiB and more (Content-Encoding: gzip). The receiver must support it. Signatures are those of the body before." enum:"gzip"`

	// IDPrefix is prepended to the row's id in webhook-id, Idempotency-Key and ce-id.
	// Set it for a receiver with rows of two outboxes that drops duplicates by the id
	// alone.
	IDPrefix string `yaml:"id-prefix" doc:"Prefix of the row's id in webhook-id, Idempotency-Key and ce-id, for a receiver with rows of two outboxes."`

	// Treat409AsDelivered makes 409 a delivery. By default it is a failure like any
	// other 4xx, because most receivers report a conflict with it, for example a
	// stale version.
	Treat409AsDelivered bool `yaml:"treat-409-as-delivered" doc:"Whether a response 409 means that the receiver already has the row. Otherwise it counts like any other 4xx."`

	// References are the texts of URL and Headers that come from a file or a variable. No
	// detail shows them, even if they are plain words.
	References []sink.Secret `yaml:"-"`

	// OAuth fetches the bearer tokens, unless it is the zero value. It excludes Token.
	OAuth OAuth `yaml:"-"`

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
	c.validateAddress(&bad)
	if c.Method != "" && c.Method != http.MethodPost && c.Method != http.MethodPut {
		bad.Add("method", "is %q, must be POST or PUT", c.Method)
	}

	for i, s := range c.Secrets {
		if _, err := parseSecret(string(s)); err != nil {
			bad.Add(fmt.Sprintf("secrets[%d]", i), "%s", err)
		}
	}

	bad.AddErr(httpsink.CheckSettings(&c.HTTP, "token"))
	bad.AddErr(c.OAuth.Check(c.Token, "token"))
	if c.OAuth.Enabled() && c.OAuth.TokenURL == "" {
		bad.Add("oauth.token-url", "is not set; set it to the address of the token endpoint")
	}
	if c.Compression != "" && c.Compression != CompressionGzip {
		bad.Add("compression", "is %q, must be %s", c.Compression, CompressionGzip)
	}
	c.validateFormat(&bad)
	c.validateHeaders(&bad)
	return bad.Err()
}

// validateAddress checks the address.
func (c *Config) validateAddress(bad *store.FieldErrors) {
	a, err := parseAddress(string(c.URL), c.AllowHosts)
	if err != nil {
		bad.AddErr(err)
		return
	}
	if a.named() {
		c.refuseCredentials(bad)
	}
	if !a.fixed() && c.Format.severalRows() {
		bad.Add("url", "has a value of the row; format: %s sends several rows to one address", c.Format)
	}
}

// refuseCredentials reports the credentials of the configuration, which must not go to hosts
// that rows name.
func (c *Config) refuseCredentials(bad *store.FieldErrors) {
	const leaks = "would go to every host that a row names"
	if c.Token != "" {
		bad.Add("token", leaks+"; remove it, or take it from the row: headers: {Authorization: 'Bearer {attr.NAME}'}")
	}
	if c.OAuth.Enabled() {
		bad.Add("oauth", "gets a token that "+leaks+"; remove it")
	}
	if c.CertFile != "" {
		bad.Add("cert-file", leaks+"; remove it")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if t, err := template.Parse(string(c.Headers[name])); err == nil && len(event.HeaderLiterals(&t)) > 0 {
			bad.Add("headers."+name, "has a text that "+leaks+"; use fields of the row alone, or Bearer or Basic before one")
		}
	}
}

// validateFormat checks the fields that describe the payload.
func (c *Config) validateFormat(bad *store.FieldErrors) {
	if c.Format != "" && !slices.Contains(formats(), c.Format) {
		bad.Add("format", "is %q, must be one of %q", string(c.Format), formats())
	}

	events := c.events()
	events.CheckEvent(bad)
	if _, ok := bodyMember(c.Body); c.Body != "" && !ok {
		bad.Add("body", "must be one member of the payload, for example {payload.body}, or empty")
	} else if c.Body != "" && (c.Format.inBody() || c.Format.severalRows()) {
		bad.Add("body", "is for format: %s and %s; format: %s sends the payload", FormatRaw, FormatCloudEvents, c.Format)
	}
	if c.Format == FormatJSONArray && c.ContentType != "" && !event.IsJSON(c.ContentType) {
		bad.Add("content-type", "is %q, but format: %s is JSON", c.ContentType, c.Format)
	}
}

// validateHeaders checks the fields for other headers.
func (c *Config) validateHeaders(bad *store.FieldErrors) {
	checkHeaders(bad, c)
	if c.Format.severalRows() && len(c.MetadataHeaders) > 0 {
		bad.Add("metadata-headers", "is for one row a request; format: %s has several", c.Format)
	}
	for i, word := range c.MetadataHeaders {
		switch name, _ := metadata(word); {
		case name == "":
			bad.Add(fmt.Sprintf("metadata-headers[%d]", i), "is %q, must be %s, %s, %s, %s or %s",
				word, MetadataKind, MetadataGroup, MetadataType, MetadataTime, MetadataAttempt)
		case slices.Index(c.MetadataHeaders, word) < i:
			bad.Add(fmt.Sprintf("metadata-headers[%d]", i), "repeats %s", word)
		}
	}

	events := c.events()
	events.CheckIDPrefix(bad)
}
