package webhook_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

func TestConfigValidate(t *testing.T) {
	type config = webhook.Config
	headers := func(pairs ...string) func(*config) {
		return func(c *config) {
			c.Headers = map[string]sink.Secret{}
			for i := 0; i < len(pairs); i += 2 {
				c.Headers[pairs[i]] = sink.Secret(pairs[i+1])
			}
		}
	}

	events := func(f func(*config)) func(*config) {
		return func(c *config) {
			c.Format, c.CloudEventsSource = webhook.FormatCloudEvents, "/shop"
			f(c)
		}
	}

	batch := func(f func(*config)) func(*config) {
		return events(func(c *config) {
			c.Format = webhook.FormatBatch
			f(c)
		})
	}
	client := func(f func(*config)) func(*config) {
		return func(c *config) {
			c.OAuth = webhook.OAuth{TokenURL: "https://h/token", ClientID: "relay", ClientSecret: canary}
			f(c)
		}
	}
	address := func(url sink.Secret) func(*config) { return func(c *config) { c.URL = url } }
	for name, c := range map[string]struct {
		change func(*config)
		want   string // part of the error; "" for none
	}{
		"defaults":           {func(*config) {}, ""},
		"zero values":        {func(c *config) { *c = config{URL: c.URL} }, ""},
		"query":              {func(c *config) { c.URL = "http://h:8080/a/b?key=" + canary }, ""},
		"no address":         {func(c *config) { c.URL = "" }, "url is not set"},
		"no scheme":          {func(c *config) { c.URL = "hooks.example/" + canary }, `url has scheme ""`},
		"other scheme":       {func(c *config) { c.URL = "ftp://h/" + canary }, `url has scheme "ftp"`},
		"no host":            {func(c *config) { c.URL = "https:///" + canary }, "url has no host"},
		"broken":             {func(c *config) { c.URL = "https://h/%zz" + canary }, "url is not a URL such as"},
		"password":           {func(c *config) { c.URL = "https://u:" + canary + "@h" }, "url contains a user or password; put the token in token"},
		"fragment":           {func(c *config) { c.URL = "https://h/#" + canary }, "url must not have a fragment (#)"},
		"PUT":                {func(c *config) { c.Method = "PUT" }, ""},
		"method":             {func(c *config) { c.Method = "post" }, `method is "post", must be POST or PUT`},
		"rotation":           {func(c *config) { c.Secrets = []sink.Secret{secretA, secretB} }, ""},
		"bad secret":         {func(c *config) { c.Secrets = []sink.Secret{secretA, canary} }, "secrets[1] does not start with whsec_"},
		"short secret":       {func(c *config) { c.Secrets = []sink.Secret{"whsec_" + "QUJD"} }, "secrets[0] decodes to 3 bytes"},
		"token newline":      {func(c *config) { c.Token = canary + "\n" }, "token contains a space, a line break"},
		"timeout":            {func(c *config) { c.RequestTimeout = -time.Second }, "request-timeout is -1s"},
		"connections":        {func(c *config) { c.MaxConnections = -1 }, "max-connections is -1"},
		"bytes":              {func(c *config) { c.MaxRequestBytes = -1 }, "max-request-bytes is -1"},
		"user agent":         {func(c *config) { c.UserAgent = "a\r\nX: y" }, "user-agent"},
		"no ca file":         {func(c *config) { c.CAFile = "/does/not/exist.pem" }, "ca-file: open /does/not/exist.pem"},
		"ca file empty":      {func(c *config) { c.CAFile = os.DevNull }, "ca-file: " + os.DevNull + " contains no PEM certificate"},
		"prefix":             {func(c *config) { c.IDPrefix = "evt_" }, ""},
		"prefix blank":       {func(c *config) { c.IDPrefix = "evt " }, "id-prefix is"},
		"prefix long":        {func(c *config) { c.IDPrefix = strings.Repeat("x", 65) }, "id-prefix is"},
		"media type":         {func(c *config) { c.ContentType = "text/plain; charset=utf-8" }, ""},
		"no media type":      {func(c *config) { c.ContentType = "json;" }, ""},
		"bad media type":     {func(c *config) { c.ContentType = "application/" }, "content-type is"},
		"type newline":       {func(c *config) { c.ContentType = "text/plain;\r\n x=y" }, "content-type is"},
		"format":             {func(c *config) { c.Format = "xml" }, `format is "xml", must be one of ["raw" "cloudevents" "cloudevents-structured" "cloudevents-batch" "json-array"]`},
		"events":             {events(func(*config) {}), ""},
		"events, typed":      {events(func(c *config) { c.CloudEventsType = "com.example.order" }), ""},
		"events, no source":  {events(func(c *config) { c.CloudEventsSource = "" }), "cloudevents-source is not set"},
		"events, bad source": {events(func(c *config) { c.CloudEventsSource = "/a b" }), "cloudevents-source is"},
		"events, bad type":   {events(func(c *config) { c.CloudEventsType = "a b" }), "cloudevents-type is"},
		"events, structured": {events(func(c *config) { c.ContentType = "application/cloudevents+json" }), "set format to raw"},
		"raw, structured":    {func(c *config) { c.ContentType = "application/cloudevents+json" }, ""},
		"raw, source":        {func(c *config) { c.CloudEventsSource = "/s" }, "cloudevents-source is only for a format of CloudEvents"},
		"raw, type":          {func(c *config) { c.CloudEventsType = "t" }, "cloudevents-type is only for a format of CloudEvents"},
		"url path":           {address("https://h/{kind}/{group}?g={group}&x={{"), ""},
		"url in the host":    {address("https://{group}.example/x"), "url has a field in its host"},
		"url port":           {address("https://h:{id}/"), "url has a field in its host"},
		"url field":          {address("https://h/{" + canary + "}"), "url has a brace alone or an unknown field in braces; the fields are {id}"},
		"url brace":          {address("https://h/?a=" + canary + "}"), "url has a brace alone"},
		"batch":              {batch(headers("Ce-Tenant", "{group}", "X-A", "a")), ""},
		"batch, url":         {batch(address("https://h/{id}")), "url has a value of the row; format: cloudevents-batch sends several rows to one address"},
		"batch, header":      {batch(headers("X-A", "{id}")), "headers.X-A has a value of the row; format: cloudevents-batch has several rows a request"},
		"batch, metadata":    {batch(func(c *config) { c.MetadataHeaders = []string{"kind"} }), "metadata-headers is for one row a request"},
		"batch, no source":   {batch(func(c *config) { c.CloudEventsSource = "" }), "cloudevents-source is not set"},
		"array":              {func(c *config) { c.Format = webhook.FormatJSONArray }, ""},
		"array of csv":       {func(c *config) { c.Format, c.ContentType = webhook.FormatJSONArray, "text/csv" }, `content-type is "text/csv", but format: json-array is JSON`},
		"oauth":              {client(func(*config) {}), ""},
		"oauth, no url":      {client(func(c *config) { c.OAuth.TokenURL = "" }), "oauth.token-url is not set"},
		"oauth, no secret":   {client(func(c *config) { c.OAuth.ClientSecret = "" }), "oauth.client-secret is not set"},
		"oauth and token":    {client(func(c *config) { c.Token = canary }), "token and oauth are both set; keep one"},
		"oauth and header":   {client(headers("Authorization", canary)), "headers.Authorization conflicts with token or oauth"},
		"metadata":           {func(c *config) { c.MetadataHeaders = []string{"kind", "group", "attempt"} }, ""},
		"metadata unknown":   {func(c *config) { c.MetadataHeaders = []string{"kind", "id"} }, `metadata-headers[1] is "id", must be kind, group, type, time or attempt`},
		"metadata twice":     {func(c *config) { c.MetadataHeaders = []string{"kind", "kind"} }, "metadata-headers[1] repeats kind"},
		"headers":            {headers("Authorization", "Basic "+canary, "X-Tenant", "a b"), ""},
		"two authorizations": {func(c *config) { headers("authorization", canary)(c); c.Token = canary }, "headers.authorization conflicts with token or oauth"},
		"header name":        {headers("X Y", canary), `headers has the invalid name "X Y"`},
		"header no name":     {headers("", canary), `headers has the invalid name ""`},
		"header colon":       {headers("X:", canary), `headers has the invalid name "X:"`},
		"header twice":       {headers("x-a", "1", "X-A", "2"), "headers.x-a is the same header as headers.X-A"},
		"header newline":     {headers("X-A", canary+"\r\nX-B: 1"), "headers.X-A contains a line break"},
		"header stray blank": {headers("X-A", canary+" "), "headers.X-A contains a line break"},
		"header empty":       {headers("X-A", ""), "headers.X-A is empty"},
		"host":               {headers("host", canary), "headers.host cannot be set: it is reserved for the HTTP connection"},
		"length":             {headers("Content-Length", "1"), "headers.Content-Length cannot be set"},
		"transfer":           {headers("transfer-encoding", "chunked"), "headers.transfer-encoding cannot be set"},
		"connection":         {headers("Connection", "close"), "headers.Connection cannot be set"},
		"te":                 {headers("TE", "trailers"), "headers.TE cannot be set"},
		"signature":          {headers("webhook-Signature", canary), "headers.webhook-Signature cannot be set: names starting with webhook-"},
		"event header":       {headers("CE-id", canary), "headers.CE-id cannot be set: the relay sets ce-id"},
		"event header, raw":  {headers("ce-tenant", "t"), "headers.ce-tenant cannot be set: names starting with ce- belong to the formats of CloudEvents"},
		"event data header":  {events(headers("ce-data", "t")), "headers.ce-data cannot be set: it is no extension of an event"},
		"event no name":      {events(headers("ce-", "t")), "headers.ce- cannot be set: it is no extension of an event"},
		"url query only":     {address("https://h?id={id}"), ""},
		"extension":          {events(headers("Ce-Tenant", "{group}")), ""},
		"extension name":     {events(headers("ce-tenant-id", "t")), "headers.ce-tenant-id cannot be set: the name of an extension has letters and digits only"},
		"event type header":  {events(headers("ce-type", "t")), "headers.ce-type cannot be set: the relay sets ce-type; use the key cloudevents-type"},
		"template":           {headers("X-A", "{kind}/{group} {{}}"), ""},
		"template field":     {headers("X-A", "{"+canary+"}"), "headers.X-A has a brace alone or an unknown field in braces; the fields are {id}, "},
		"template brace":     {headers("X-A", canary+"}"), "headers.X-A has a brace alone"},
		"attributes": {events(func(c *config) {
			headers("X-A", "{type}/{attr.a b}", "ce-b", "{attr.b}")(c)
			c.URL, c.CloudEventsType, c.CloudEventsSubject = "https://h/{attr.x}?y={type}", "a.{type}", "{attr.s}"
		}), ""},
		"attribute no name": {headers("X-A", "{attr.}"), "headers.X-A has a brace alone or an unknown field"},
		"type template":     {events(func(c *config) { c.CloudEventsType = "a.{kind}" }), ""},
		"type field":        {events(func(c *config) { c.CloudEventsType = "a.{kynd}" }), "cloudevents-type has {kynd} at character 3, did you mean {kind}?"},
		"subject":           {events(func(c *config) { c.CloudEventsSubject = "{kind}/{group}" }), ""},
		"subject field":     {events(func(c *config) { c.CloudEventsSubject = "{" }), "cloudevents-subject has a { without a } at character 1"},
		"raw, subject":      {func(c *config) { c.CloudEventsSubject = "t" }, "cloudevents-subject is only for a format of CloudEvents"},
		"own":               {headers("Sluicebox-Anything", canary), "names starting with sluicebox-"},
		"type":              {headers("Content-Type", "text/plain"), "use the key content-type"},
		"agent":             {headers("User-Agent", "x"), "use the key user-agent"},
		"key":               {headers("Idempotency-Key", canary), "headers.Idempotency-Key cannot be set"},
		"other key":         {headers("X-Idempotency-Key", canary), "headers.X-Idempotency-Key cannot be set"},
		"compressed":        {headers("Accept-Encoding", "gzip"), "compressed responses are not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := webhook.DefaultConfig()
			cfg.URL = "https://hooks.example/orders"
			c.change(&cfg)
			_, err := webhook.New(cfg)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got error %v, want %q in it", err, c.want)
			case err != nil && strings.Contains(err.Error(), canary):
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

// TestConfigReportsAll: one check reports every invalid key, each on a line that
// starts with the key.
func TestConfigReportsAll(t *testing.T) {
	cfg := webhook.Config{
		Method: "GET", Secrets: []sink.Secret{""}, Format: "x", Headers: map[string]sink.Secret{"Host": "h"}, MetadataHeaders: []string{"x"},
		HTTP: webhook.HTTP{RequestTimeout: -1, MaxConnections: -1, MaxRequestBytes: -1, Token: "a b", UserAgent: "\n"}, IDPrefix: " ", ContentType: "/", CloudEventsSource: "s",
	}

	err := cfg.Validate()
	if err == nil {
		t.Fatal("invalid configuration accepted")
	}

	keys := map[string]bool{}
	for _, line := range strings.Split(err.Error(), "\n") {
		key, _, _ := strings.Cut(line, " ")
		keys[key] = true
	}

	for _, key := range []string{
		"url", "method", "secrets[0]", "format", "request-timeout", "max-connections", "max-request-bytes",
		"headers.Host", "metadata-headers[0]", "token", "user-agent", "id-prefix", "content-type", "cloudevents-source",
	} {
		if !keys[key] {
			t.Errorf("no line begins with %s in\n%v", key, err)
		}
	}
}

// TestSecretsAreNotPrinted: printing a configuration or a sink shows none of its
// secrets.
func TestSecretsAreNotPrinted(t *testing.T) {
	cfg := webhook.DefaultConfig()
	cfg.URL, cfg.Token = "https://hooks.example/"+canary+"?key="+canary, canary
	cfg.Secrets = []sink.Secret{secretA, secretB}
	cfg.Headers = map[string]sink.Secret{"X-Key": canary}
	s := newSink(t, cfg)
	var out bytes.Buffer
	for _, v := range []any{cfg, &cfg, s, *s, []any{cfg}, struct{ C webhook.Config }{cfg}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(h).Info("sink", "value", v)
		}
	}

	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}

	out.Write(b)
	for _, secret := range []string{canary, secretA[6:], secretB[6:], "1\xf2\x90\xf6", "sluicebox-second-secret", "[115 108 117 105 99"} {
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret)} {
			if i := strings.Index(out.String(), form); i >= 0 {
				t.Errorf("a secret was printed: …%s", out.String()[max(0, i-100):i+len(form)])
			}
		}
	}

	if !strings.Contains(out.String(), "[redacted]") {
		t.Error("Redacted is missing")
	}
}
