package config

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// Outboxes returns the outboxes in the order of the configuration.
func (c *Config) Outboxes() []store.Outbox {
	outboxes := make([]store.Outbox, len(c.Settings.Outboxes))
	for i, o := range c.Settings.Outboxes {
		schema, table := splitTable(o.Table)
		archiveSchema, archive := splitTable(o.Archive)
		lettersSchema, letters := splitTable(o.DeadLetterTable)
		if c.Settings.Source.URL.documents() { // a collection name may contain dots
			schema, table, archiveSchema, archive = "", o.Table, "", o.Archive
			lettersSchema, letters = "", o.DeadLetterTable
		}
		layout := o.storeLayout(c.Settings.Source.URL.documents())
		layout.Unclaimed = c.Settings.Dispatch.Claims == claimsOff
		box := o.relayOutbox(store.Outbox{
			Name: o.Name, Schema: schema, Table: table, MessagePrefix: o.Prefix, Layout: layout, Kind: o.Kind,
			Retention: o.Retention, ArchiveSchema: archiveSchema, Archive: archive,
			FailedArchiveSchema: lettersSchema, FailedArchive: letters,
		})
		outboxes[i] = box.StoreOutbox()
	}
	return outboxes
}

// Routes returns the sink of each outbox and, where an outbox has routes, of each of its legs, by
// name.
func (c *Config) Routes() map[string]string {
	routes := make(map[string]string, len(c.Settings.Outboxes))
	for _, o := range c.Settings.Outboxes {
		if len(o.Routes) == 0 {
			routes[o.Name] = o.Sink
		}
		for _, r := range o.Routes {
			routes[store.LegName(o.Name, r.Name)] = r.Sink
		}
	}
	return routes
}

// Sinks returns the sorted names of all sinks, also of those used only by replays.
func (c *Config) Sinks() []string { return slices.Sorted(maps.Keys(c.Settings.Sinks)) }

// Dispatch returns the dispatcher configuration of a sink. The sink must be one of Sinks.
func (c *Config) Dispatch(sink string) dispatch.Config {
	s := c.Settings.Sinks[sink]
	d := s.Config
	d.TakeoverWait = c.Settings.Dispatch.TakeoverWait
	return d
}

// FlowCatalyst returns the configuration of a FlowCatalyst sink. The sink must be one of
// Sinks.
func (c *Config) FlowCatalyst(sink string) flowcatalyst.Config {
	s := c.Settings.Sinks[sink]
	return s.flowCatalystConfig()
}

// http returns the settings that all sinks over HTTP have.
func (s *Sink) http() webhook.HTTP {
	return webhook.HTTP{
		Token: s.Token, CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile,
		ErrorDetail: s.ErrorDetail, RequestTimeout: s.RequestTimeout, MaxConnections: s.MaxConcurrentGroups,
	}
}

// oauth returns the token endpoint of the sink.
func (s *Sink) oauth() webhook.OAuth {
	o := s.OAuth
	if o == nil {
		return webhook.OAuth{}
	}
	return webhook.OAuth{
		TokenURL: o.TokenURL.Reveal(), ClientID: o.ClientID, ClientSecret: o.ClientSecret,
		Scope: o.Scope, Audience: o.Audience, ClientAuth: o.ClientAuth,
	}
}

// flowCatalystConfig converts the keys into the sink's configuration.
func (s *Sink) flowCatalystConfig() flowcatalyst.Config {
	return flowcatalyst.Config{Wire: s.Wire, BaseURL: s.APIBaseURL.Reveal(), Compression: s.Compression, OAuth: s.oauth(), HTTP: s.http()}
}

// flowCatalyst returns the destination of a FlowCatalyst sink.
func (s *Sink) flowCatalyst(client string) destination {
	c := s.flowCatalystConfig()
	c.UserAgent = client
	return destinationOf(&c, flowcatalyst.New)
}

// Webhook returns the configuration of a webhook sink. Its UserAgent is empty unless
// configured. The sink must be one of Sinks.
func (c *Config) Webhook(sink string) webhook.Config {
	s := c.Settings.Sinks[sink]
	return s.webhookConfig()
}

// webhookConfig completes the sink's configuration.
func (s *Sink) webhookConfig() webhook.Config {
	c := s.Webhook
	c.HTTP, c.OAuth, c.References = s.http(), s.oauth(), s.References
	c.MaxRequestBytes, c.UserAgent = int(s.MaxRequestBytes), s.UserAgent
	return c
}

// webhook returns the destination of a webhook.
func (s *Sink) webhook(client string) destination {
	c := s.webhookConfig()
	c.UserAgent = cmp.Or(c.UserAgent, client)
	return destinationOf(&c, webhook.New)
}

// Kafka returns the configuration of a Kafka sink, for another client of its topic. The sink must be
// one of Sinks.
func (c *Config) Kafka(sink, client string) kafka.Config {
	s := c.Settings.Sinks[sink]
	return s.kafkaConfig(client)
}

// kafkaConfig completes the sink's configuration.
func (s *Sink) kafkaConfig(client string) kafka.Config {
	c := s.Kafka
	c.Connect(s.connection(client))
	c.Token, c.OAuth, c.MaxRequestBytes = s.Token, s.oauth(), int(s.MaxRequestBytes)
	return c
}

// kafka returns the destination of a Kafka sink.
func (s *Sink) kafka(client string) destination {
	c := s.kafkaConfig(client)
	return destinationOf(&c, kafka.New)
}

// camunda returns the destination of a Camunda sink.
func (s *Sink) camunda(client string) destination {
	c := s.Camunda
	c.Connect(s.connection(client))
	c.Token, c.OAuth, c.MaxRequestBytes = s.Token, s.oauth(), int(s.MaxRequestBytes)
	return destinationOf(&c, camunda.New)
}

// setWebhookDefaults sets the defaults of a webhook's keys.
func (s *Sink) setWebhookDefaults() {
	s.Webhook = webhook.DefaultConfig()
	s.Webhook.HTTP = webhook.HTTP{} // settings of every sink
}

// Relay returns the options of the relay. agent is the User-Agent of sinks without one. The
// error is about source.url.
func (c *Config) Relay(agent string) (sluicebox.Options, error) {
	db, err := c.database()
	s := &c.Settings
	claims := sluicebox.ClaimsMode(s.Dispatch.Claims)
	if claims == sluicebox.ClaimsOff {
		claims = "" // the layouts say it
	}
	o := sluicebox.Options{
		Name: s.Name, Database: db, Mode: sluicebox.Mode(s.Source.Mode), TakeoverTimeout: c.takeoverTimeout(), Claims: claims,
		Poll:    sluicebox.PollOptions{Interval: s.Source.PollInterval, BatchSize: s.Source.PollBatchSize, Backoff: s.Source.PollBackoff},
		MaxHold: int64(s.Checkpoint.MaxHold), MaxKept: int64(s.Checkpoint.MaxKept), SweepInterval: s.Checkpoint.SweepInterval,
		Sinks: c.relaySinks(agent),
		Reload: sluicebox.Reload{Files: c.Files(), Sinks: func() (map[string]sluicebox.Sink, error) {
			now, err := c.Reread()
			if err != nil {
				return nil, err
			}
			return now.relaySinks(agent), nil
		}},
	}
	for i, table := range c.Outboxes() {
		o.Outboxes = append(o.Outboxes, s.Outboxes[i].relayOutbox(table))
	}
	return o, err
}

// sinkInputs are the settings and file contents that a sink is opened with.
type sinkInputs struct {
	settings Sink
	files    [5][sha256.Size]byte // hashes of the certificates, the keys and the credentials
}

// files returns the files that opening the sink reads; "" is none.
func (s *Sink) files() [5]string {
	return [...]string{s.CAFile, s.CertFile, s.KeyFile, s.NATS.CredsFile, s.NATS.NKeyFile}
}

// relaySinks returns the sinks by name.
func (c *Config) relaySinks(agent string) map[string]sluicebox.Sink {
	sinks := map[string]sluicebox.Sink{}
	for name, s := range c.Settings.Sinks {
		inputs := sinkInputs{settings: s}
		for i, file := range s.files() {
			if file != "" {
				content, _ := os.ReadFile(file) // opening the sink reports a read error
				inputs.files[i] = sha256.Sum256(content)
			}
		}
		sinks[name] = sluicebox.Sink{
			Open:   func() (sink.Sink, error) { return c.OpenSink(name, agent) },
			Limits: sinkTypes()[s.Type].destination(&s, agent).limits, Inputs: inputs,
			Dispatch: c.Dispatch(name), RequestTimeout: s.RequestTimeout,
		}
	}
	return sinks
}

// OpenSink opens a sink; see Relay. The sink must be one of Sinks. The error is a
// *sink.FileError if a file is missing or invalid.
func (c *Config) OpenSink(name, agent string) (OpenSink, error) {
	if err := c.SinkReferenceErrors(name); err != nil {
		return nil, &sink.FileError{Err: err}
	}
	s := c.Settings.Sinks[name]
	return sinkTypes()[s.Type].destination(&s, agent).open()
}

// takeoverTimeout returns 0 if rows in PROCESSING are claimed at once.
func (c *Config) takeoverTimeout() time.Duration {
	if c.Settings.Dispatch.Takeover == "at-once" {
		return 0
	}
	return time.Duration(c.Settings.Dispatch.ProcessingTimeoutSeconds) * time.Second
}

// Shard returns the configuration of the relay of a partition: a relay of its own name.
func (c *Config) Shard(partition int) *Config {
	of := *c
	of.Settings.Name = store.ShardName(c.Settings.Name, partition)
	of.reread = func() (*Config, error) {
		now, err := c.Reread()
		if err != nil {
			return nil, err
		}
		return now.Shard(partition), nil
	}
	return &of
}

// TotalBufferBytes returns the sum of buffer-bytes of all sinks.
func (c *Config) TotalBufferBytes() (sum int64) {
	seen := map[string]bool{}
	for _, name := range c.Routes() {
		if !seen[name] {
			seen[name] = true
			sum += c.Dispatch(name).BufferBytes
		}
	}
	return sum
}

// Admin returns the configuration of the HTTP endpoints.
func (c *Config) Admin(metrics prometheus.Gatherer) admin.Config {
	var tokens []admin.Token
	for _, t := range c.Settings.Admin.Tokens {
		tokens = append(tokens, admin.Token{Name: t.Name, Role: admin.Role(t.Role), Token: string(t.Token)})
	}
	return admin.Config{
		Listen:  c.Settings.Admin.Listen,
		Token:   string(c.Settings.Admin.Token),
		Hosts:   c.Settings.Admin.Hosts,
		Metrics: metrics,

		ViewerToken: string(c.Settings.Admin.ViewerToken),
		Tokens:      tokens,
		Profiling:   c.Settings.Admin.Profiling,
	}
}
