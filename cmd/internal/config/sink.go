package config

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

// The types of sinks.
const (
	SinkFlowCatalyst = "flowcatalyst"
	SinkWebhook      = "webhook"
)

// Sink is one entry of sinks. Its keys depend on its type.
type Sink struct {
	Type string `yaml:"type" doc:"Required. What the destination is: the API of FlowCatalyst, or an HTTP endpoint that takes one row a request." enum:"flowcatalyst,webhook" later:"kafka,nats,camunda,redis"`

	Wire       string `yaml:"wire" doc:"array: the body is a list of rows, as the first API takes it. items: the body is an object with a list, and the answer has a result for each row, as in today's API. Default: items for a sink that gets rows of an outbox-messages table, array for any other." enum:"array,items" only:"type=flowcatalyst"`
	APIBaseURL URL    `yaml:"api-base-url" doc:"Required. The address of the API without its paths: https://host[:port][/prefix]." only:"type=flowcatalyst"`

	URL                 Secret            `yaml:"url" doc:"Required. The address of the endpoint: https://host[:port]/path. It is kept secret, for a key may be part of it." only:"type=webhook" placeholder:"https://xxxxx"`
	Method              string            `yaml:"method" doc:"The method of the requests." enum:"POST,PUT" only:"type=webhook"`
	Secrets             []Secret          `yaml:"secrets" doc:"Keys that sign each request as Standard Webhooks lays down, whsec_ and base64. Several all sign, so that a receiver may go from one to the next. Best references: ${file:/run/secrets/key} or ${env:NAME}." only:"type=webhook" placeholder:"whsec_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`
	Format              string            `yaml:"format" doc:"raw: the body is the payload. cloudevents: so it is, and ce-* headers describe it." enum:"raw,cloudevents" only:"type=webhook"`
	ContentType         string            `yaml:"content-type" doc:"The content type of the payloads." only:"type=webhook"`
	CloudEventsSource   string            `yaml:"cloudevents-source" doc:"With format cloudevents, the ce-source, which names this outbox among all producers, such as /shop/orders." only:"type=webhook"`
	CloudEventsType     string            `yaml:"cloudevents-type" doc:"With format cloudevents, the ce-type. Empty: the kind of the row." only:"type=webhook"`
	Headers             map[string]Secret `yaml:"headers" doc:"Headers that are sent with each request, by name. Their values are kept secret." only:"type=webhook"`
	MetadataHeaders     []string          `yaml:"metadata-headers" doc:"What headers tell of a row: its kind in Sluicebox-Kind, its message group in Sluicebox-Group, the number of the attempt in Sluicebox-Attempt." enum:"kind,group,attempt" only:"type=webhook"`
	IDPrefix            string            `yaml:"id-prefix" doc:"Stands in front of the row's id in webhook-id, Idempotency-Key and ce-id, for a receiver that takes rows of two outboxes." only:"type=webhook"`
	Treat409AsDelivered bool              `yaml:"treat-409-as-delivered" doc:"Whether the answer 409 means that the receiver has the row already. Otherwise it counts like any other 4xx." only:"type=webhook"`
	MaxRequestBytes     Size              `yaml:"max-request-bytes" doc:"The largest payload that is sent, such as 1MiB; a larger one is rejected. 0B: any." only:"type=webhook"`
	UserAgent           string            `yaml:"user-agent" doc:"The User-Agent of the requests. Empty: sluicebox and its version." only:"type=webhook"`

	Token  Secret `yaml:"token" alias:"api-token" doc:"Bearer token. Best a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	OAuth  *OAuth `yaml:"oauth" doc:"Gets the bearer tokens from a token endpoint. In place of token." only:"type=flowcatalyst"`
	CAFile string `yaml:"ca-file" doc:"PEM file of the authorities to trust for the destination, in place of the system's."`

	ErrorDetail string `yaml:"error-detail" doc:"What a row's error column and the log show of an answer that fails. body: the status and the first 300 characters of the body, without the sink's secrets. status: the status alone, for receivers that quote payloads." enum:"body,status"`

	Delivery `yaml:",inline"`
}

// OAuth is the section oauth.
type OAuth struct {
	TokenURL     URL    `yaml:"token-url" doc:"The address of the token endpoint. Empty: api-base-url with /oauth/token behind it."`
	ClientID     string `yaml:"client-id" doc:"Required. The client that the tokens are for."`
	ClientSecret Secret `yaml:"client-secret" doc:"Required. The client's secret. Best a reference: ${file:/run/secrets/client} or ${env:NAME}."`
	Scope        string `yaml:"scope" doc:"The scopes to ask for, with blanks between them. Empty: what the endpoint gives."`
	Audience     string `yaml:"audience" doc:"The audience to ask for, where the endpoint wants one."`
	ClientAuth   string `yaml:"client-auth" doc:"How the client's id and secret are sent: basic, by HTTP Basic; body, as parameters; auto, the default, by HTTP Basic and then as parameters if the endpoint refuses that." enum:"auto,basic,body"`
}

// defaultSink returns a sink with default values.
func defaultSink(d Delivery) Sink {
	w := webhook.DefaultConfig()
	return Sink{ // the default of Wire depends on the outboxes
		Method: w.Method, Format: string(w.Format), ContentType: w.ContentType, Treat409AsDelivered: w.Treat409AsDelivered,
		ErrorDetail: string(webhook.ErrorDetailBody),
		Delivery:    d,
	}
}

// FlowCatalyst is the section flowcatalyst, the preset.
type FlowCatalyst struct {
	Wire              string `yaml:"wire" doc:"array: the body is a list of rows, as the first API takes it. items: the body is an object with a list, and the answer has a result for each row, as in today's API. Default: array." enum:"array,items"`
	APIBaseURL        URL    `yaml:"api-base-url" doc:"Required. The address of the API without its paths: https://host[:port][/prefix]."`
	APIToken          Secret `yaml:"api-token" doc:"Bearer token. Best a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	OAuth             *OAuth `yaml:"oauth" doc:"Gets the bearer tokens from a token endpoint. In place of api-token."`
	EventsTable       string `yaml:"events-table" doc:"The table of events, [schema.]table. Empty: no events are relayed."`
	DispatchJobsTable string `yaml:"dispatch-jobs-table" doc:"The table of dispatch jobs, [schema.]table. Empty: no dispatch jobs are relayed."`
	CAFile            string `yaml:"ca-file" doc:"PEM file of the authorities to trust for the API, in place of the system's."`

	OrderBy     []string `yaml:"order-by" doc:"The columns in whose order rows are read where the log does not give the order, in both tables; see outboxes[].order-by. Default: created_at (createdAt)."`
	ErrorDetail string   `yaml:"error-detail" doc:"What a row's error column and the log show of an answer that fails. body: the status and the first 300 characters of the body, without the sink's secrets. status: the status alone, for receivers that quote payloads." enum:"body,status"`

	Retention time.Duration `yaml:"retention" doc:"How long a delivered row is kept, such as 7d or 36h. Then it is deleted, within the hour; FAILED rows stay. 0s: for ever."`
}

// defaultPreset returns the preset with default values.
func defaultPreset() FlowCatalyst {
	return FlowCatalyst{
		ErrorDetail:       string(webhook.ErrorDetailBody),
		EventsTable:       "outbox_events",
		DispatchJobsTable: "outbox_dispatch_jobs",
	}
}
