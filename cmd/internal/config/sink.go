package config

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/dispatch/sink/logfile"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/dispatch/sink/rabbitmq"
	"github.com/sluicebox/sluicebox/dispatch/sink/redis"
	"github.com/sluicebox/sluicebox/dispatch/sink/statistics"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

// The types of sinks.
const (
	SinkFlowCatalyst = "flowcatalyst"
	SinkWebhook      = "webhook"
	SinkKafka        = "kafka"
	SinkLog          = "log"
	SinkNATS         = "nats"
	SinkRabbitMQ     = "rabbitmq"
	SinkRedis        = "redis"
	SinkStatistics   = "statistics"
	SinkCamunda      = "camunda"
)

// OpenSink is a sink that holds connections.
type OpenSink interface {
	sink.Sink
	sink.Prober
	Close()
}

// sinkType is the code of one type of sinks.
type sinkType struct {
	// defaults sets the defaults of the type's keys; nil if there are none.
	defaults func(s *Sink)
	// destination returns the destination that a sink of the type describes. client is the name
	// and the version of the program.
	destination func(s *Sink, client string) destination
	// require reports the required keys that are missing; nil if validate does.
	require func(k *checker, path string, s *Sink)
}

// destination is the completed configuration of a sink.
type destination struct {
	validate func() error
	limits   func(kind string) sink.Limits
	fields   func() []sink.Field
	open     func() (OpenSink, error)
}

// destinationConfig is the Config of the package of a type of sinks.
type destinationConfig interface {
	Validate() error
	Limits(kind string) sink.Limits
	Fields() []sink.Field
}

// destinationOf returns the destination of a configuration.
func destinationOf[C any, S OpenSink, P interface {
	*C
	destinationConfig
}](c P, open func(C) (S, error)) destination {
	return destination{c.Validate, c.Limits, c.Fields, func() (OpenSink, error) {
		s, err := open(*c)
		if err != nil {
			return nil, err // not a nil S
		}
		return s, nil
	}}
}

// typeOf returns the type whose keys are those of its Config, which is part of Sink.
func typeOf[C any, S OpenSink, P interface {
	*C
	destinationConfig
	Connect(sink.Connection)
}](part func(s *Sink) P, defaults func() C, open func(C) (S, error)) sinkType {
	return sinkType{
		defaults: func(s *Sink) { *part(s) = defaults() },
		destination: func(s *Sink, client string) destination {
			own := *part(s)
			c := P(&own)
			c.Connect(s.connection(client))
			return destinationOf(c, open)
		},
	}
}

// sinkTypes returns the types of sinks by name.
func sinkTypes() map[string]sinkType {
	return map[string]sinkType{
		SinkFlowCatalyst: {nil, (*Sink).flowCatalyst, (*checker).requireFlowCatalyst},
		SinkWebhook:      {(*Sink).setWebhookDefaults, (*Sink).webhook, (*checker).requireWebhook},
		SinkKafka:        {func(s *Sink) { s.Kafka = kafka.DefaultConfig() }, (*Sink).kafka, nil},
		SinkCamunda:      {func(s *Sink) { s.Camunda = camunda.DefaultConfig() }, (*Sink).camunda, (*checker).requireClient},
		SinkLog:          typeOf(func(s *Sink) *logfile.Config { return &s.Log }, logfile.DefaultConfig, logfile.New),
		SinkNATS:         typeOf(func(s *Sink) *nats.Config { return &s.NATS }, nats.DefaultConfig, nats.New),
		SinkRabbitMQ:     typeOf(func(s *Sink) *rabbitmq.Config { return &s.RabbitMQ }, rabbitmq.DefaultConfig, rabbitmq.New),
		SinkRedis:        typeOf(func(s *Sink) *redis.Config { return &s.Redis }, redis.DefaultConfig, redis.New),
		SinkStatistics:   typeOf(func(s *Sink) *statistics.Config { return &s.Statistics }, statistics.DefaultConfig, statistics.New),
	}
}

// Sink is one entry of sinks. Its keys depend on its type.
type Sink struct {
	Type string `yaml:"type" doc:"Required. The destination: the FlowCatalyst API, an HTTP endpoint (webhook), or a broker, an engine or a file by its name." enum:"sinks"`

	Wire       flowcatalyst.Wire `yaml:"wire" doc:"array: the body is a list of rows (first version of the API). items: the body is an object with a list, and the response has a result for each row (current API). Default: items for a sink with rows of an outbox-messages table, else array." enum:"array,items" only:"type=flowcatalyst"`
	APIBaseURL URL               `yaml:"api-base-url" doc:"Required. The address of the API without its paths: https://host[:port][/prefix]." only:"type=flowcatalyst"`

	Compression string `yaml:"compression" doc:"gzip compresses the bodies of 1 KiB and more (Content-Encoding: gzip). The platform must support it." enum:"gzip" only:"type=flowcatalyst"`

	Webhook         webhook.Config `yaml:",inline" only:"type=webhook"`
	Kafka           kafka.Config   `yaml:",inline" only:"type=kafka"`
	MaxRequestBytes Size           `yaml:"max-request-bytes" doc:"The largest payload to send, for example 1MiB; a larger one is rejected. 0B: no limit. For kafka, the largest record, and 0B: the topic's max.message.bytes. For camunda, the largest request, and 0B: 4MiB." only:"type=webhook|kafka|camunda"`
	UserAgent       string         `yaml:"user-agent" doc:"The User-Agent of the requests. Empty: sluicebox and its version." only:"type=webhook"`

	Log  logfile.Config `yaml:",inline" only:"type=log"`
	NATS nats.Config    `yaml:",inline" only:"type=nats"`

	RabbitMQ rabbitmq.Config `yaml:",inline" only:"type=rabbitmq"`

	Redis redis.Config `yaml:",inline" only:"type=redis"`

	Statistics statistics.Config `yaml:",inline" only:"type=statistics"`

	Camunda camunda.Config `yaml:",inline" only:"type=camunda"`

	Token sink.Secret `yaml:"token" alias:"api-token" doc:"Bearer token. Prefer a reference: ${file:/run/secrets/token} or ${env:NAME}." only:"type=flowcatalyst|webhook|kafka|camunda"`
	OAuth *OAuth      `yaml:"oauth" doc:"Gets bearer tokens from a token endpoint, instead of token." only:"type=flowcatalyst|webhook|kafka|camunda"`

	CAFile   string `yaml:"ca-file" doc:"PEM file of the CA certificates to trust for the destination, instead of the system's." only:"type!=log|statistics"`
	CertFile string `yaml:"cert-file" doc:"PEM file of the client certificate to show to the destination, followed by its issuers." only:"type!=log|statistics"`
	KeyFile  string `yaml:"key-file" doc:"PEM file of the key of the client certificate." only:"type!=log|statistics"`

	ErrorDetail sink.ErrorDetail `yaml:"error-detail" doc:"The part of a failed response in the row's error column and the log. body: the status and the first 300 characters of the body, without the sink's secrets. status: only the status, for receivers that quote payloads." enum:"body,status"`

	Delivery `yaml:",inline"`

	// References are the texts of url and headers that come from a file or a variable.
	References []sink.Secret `yaml:"-"`

	// Receipts is set if an outbox of the sink has record.
	Receipts bool `yaml:"-"`
}

// OAuth is the section oauth.
type OAuth struct {
	TokenURL     URL                     `yaml:"token-url" doc:"The address of the token endpoint. Required for webhook and camunda. Empty: api-base-url with /oauth/token behind it."`
	ClientID     string                  `yaml:"client-id" doc:"Required. The OAuth client id."`
	ClientSecret sink.Secret             `yaml:"client-secret" doc:"Required. The OAuth client secret. Prefer a reference: ${file:/run/secrets/client} or ${env:NAME}."`
	Scope        string                  `yaml:"scope" doc:"The scopes to request, separated by blanks. Empty: the endpoint's default."`
	Audience     string                  `yaml:"audience" doc:"The audience to request, if the endpoint needs one."`
	ClientAuth   flowcatalyst.ClientAuth `yaml:"client-auth" doc:"How the client id and secret are sent. basic: HTTP Basic. body: parameters. auto, the default: HTTP Basic, then parameters if the endpoint refuses it." enum:"auto,basic,body"`
}

// defaultSink returns a sink with default values.
func defaultSink(d Delivery) Sink {
	s := Sink{ErrorDetail: sink.ErrorDetailBody, Delivery: d} // the default of Wire depends on the outboxes
	for _, t := range sinkTypes() {
		if t.defaults != nil {
			t.defaults(&s)
		}
	}
	return s
}

// connection returns the settings that the destination of every type has.
func (s *Sink) connection(client string) sink.Connection {
	return sink.Connection{
		CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile, RequestTimeout: s.RequestTimeout, ErrorDetail: s.ErrorDetail,
		Senders: s.MaxConcurrentGroups, Client: client, MaxBackoff: s.Backoff.Max, Receipts: s.Receipts, References: s.References,
	}
}

// FlowCatalyst is the section flowcatalyst, the preset.
type FlowCatalyst struct {
	Wire              flowcatalyst.Wire `yaml:"wire" doc:"array: the body is a list of rows (first version of the API). items: the body is an object with a list, and the response has a result for each row (current API). Default: array." enum:"array,items"`
	APIBaseURL        URL               `yaml:"api-base-url" doc:"Required. The address of the API without its paths: https://host[:port][/prefix]."`
	APIToken          sink.Secret       `yaml:"api-token" doc:"Bearer token. Prefer a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	OAuth             *OAuth            `yaml:"oauth" doc:"Gets bearer tokens from a token endpoint, instead of api-token."`
	EventsTable       string            `yaml:"events-table" doc:"The table of events, [schema.]table. Empty: no events are relayed."`
	DispatchJobsTable string            `yaml:"dispatch-jobs-table" doc:"The table of dispatch jobs, [schema.]table. Empty: no dispatch jobs are relayed."`
	CAFile            string            `yaml:"ca-file" doc:"PEM file of the CA certificates to trust for the API, instead of the system's."`

	OrderBy     []string         `yaml:"order-by" doc:"The order of rows read from the two tables instead of the log, as column names; see outboxes[].order-by. Default: created_at (createdAt)."`
	ErrorDetail sink.ErrorDetail `yaml:"error-detail" doc:"The part of a failed response in the row's error column and the log. body: the status and the first 300 characters of the body, without the sink's secrets. status: only the status, for receivers that quote payloads." enum:"body,status"`

	Retention time.Duration `yaml:"retention" doc:"How long to keep a delivered row, for example 7d or 36h. It is deleted within an hour after that; FAILED rows stay. 0s: forever."`
}

// defaultPreset returns the preset with default values.
func defaultPreset() FlowCatalyst {
	return FlowCatalyst{
		ErrorDetail:       sink.ErrorDetailBody,
		EventsTable:       "outbox_events",
		DispatchJobsTable: "outbox_dispatch_jobs",
	}
}
