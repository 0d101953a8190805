package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// Outboxes returns the outboxes in the order of the configuration.
func (c *Config) Outboxes() []store.Outbox {
	outboxes := make([]store.Outbox, len(c.Settings.Outboxes))
	for i, o := range c.Settings.Outboxes {
		schema, table := splitTable(o.Table)
		if c.Settings.Source.URL.Mongo() { // a collection name may contain dots
			schema, table = "", o.Table
		}
		layout := o.storeLayout(c.Settings.Source.URL.Mongo())
		layout.Unclaimed = c.Settings.Dispatch.Claims == claimsOff
		outboxes[i] = store.Outbox{Name: o.Name, Schema: schema, Table: table, Layout: layout, Kind: o.Kind, Retention: o.Retention}
	}
	return outboxes
}

// Routes returns the sink of each outbox, by outbox name.
func (c *Config) Routes() map[string]string {
	routes := make(map[string]string, len(c.Settings.Outboxes))
	for _, o := range c.Settings.Outboxes {
		routes[o.Name] = o.Sink
	}
	return routes
}

// Sinks returns the sorted names of all sinks, also of those used only by replays.
func (c *Config) Sinks() []string { return slices.Sorted(maps.Keys(c.Settings.Sinks)) }

// Dispatch returns the dispatcher configuration of a sink. The sink must be one of Sinks.
func (c *Config) Dispatch(sink string) dispatch.Config {
	s := c.Settings.Sinks[sink]
	d := s.dispatchConfig()
	d.TakeoverWait = c.Settings.Dispatch.TakeoverWait
	return d
}

// SinkType returns SinkFlowCatalyst or SinkWebhook. The method of that name returns the
// sink's configuration. The sink must be one of Sinks.
func (c *Config) SinkType(sink string) string { return c.Settings.Sinks[sink].Type }

// RequestTimeout returns the timeout of a request to the sink. The sink must be one of
// Sinks.
func (c *Config) RequestTimeout(sink string) time.Duration {
	return c.Settings.Sinks[sink].RequestTimeout
}

// FlowCatalyst returns the configuration of a FlowCatalyst sink. The sink must be one of
// Sinks.
func (c *Config) FlowCatalyst(sink string) flowcatalyst.Config {
	s := c.Settings.Sinks[sink]
	return s.flowCatalystConfig()
}

// flowCatalystConfig converts the keys into the sink's configuration.
func (s *Sink) flowCatalystConfig() flowcatalyst.Config {
	c := flowcatalyst.DefaultConfig()
	c.Wire = flowcatalyst.Wire(s.Wire)
	c.BaseURL = s.APIBaseURL.Reveal()
	c.Token = flowcatalyst.Token(s.Token.Reveal())
	c.RequestTimeout = s.RequestTimeout
	c.MaxConnections = s.MaxConcurrentGroups
	c.CAFile = s.CAFile
	c.ErrorDetail = flowcatalyst.ErrorDetail(s.ErrorDetail)
	if s.OAuth != nil {
		c.OAuth = flowcatalyst.OAuth{
			TokenURL:     s.OAuth.TokenURL.Reveal(),
			ClientID:     s.OAuth.ClientID,
			ClientSecret: flowcatalyst.Token(s.OAuth.ClientSecret.Reveal()),
			Scope:        s.OAuth.Scope,
			Audience:     s.OAuth.Audience,
			ClientAuth:   flowcatalyst.ClientAuth(s.OAuth.ClientAuth),
		}
	}

	return c
}

// Webhook returns the configuration of a webhook sink. Its UserAgent is empty unless
// configured. The sink must be one of Sinks.
func (c *Config) Webhook(sink string) webhook.Config {
	s := c.Settings.Sinks[sink]
	return s.webhookConfig()
}

// webhookConfig converts the keys into the sink's configuration.
func (s *Sink) webhookConfig() webhook.Config {
	c := webhook.Config{
		URL:                 webhook.Secret(s.URL.Reveal()),
		Method:              s.Method,
		Format:              webhook.Format(s.Format),
		ContentType:         s.ContentType,
		CloudEventsSource:   s.CloudEventsSource,
		CloudEventsType:     s.CloudEventsType,
		MetadataHeaders:     s.MetadataHeaders,
		IDPrefix:            s.IDPrefix,
		Treat409AsDelivered: s.Treat409AsDelivered,
		Token:               webhook.Secret(s.Token.Reveal()),
		CAFile:              s.CAFile,
		ErrorDetail:         webhook.ErrorDetail(s.ErrorDetail),
		RequestTimeout:      s.RequestTimeout,
		MaxConnections:      s.MaxConcurrentGroups,
		MaxRequestBytes:     int(s.MaxRequestBytes),
		UserAgent:           s.UserAgent,
	}

	for _, secret := range s.Secrets {
		c.Secrets = append(c.Secrets, webhook.Secret(secret.Reveal()))
	}
	for name, value := range s.Headers {
		if c.Headers == nil {
			c.Headers = map[string]webhook.Secret{}
		}
		c.Headers[name] = webhook.Secret(value.Reveal())
	}

	return c
}

// Relay returns the options of the relay, without sinks. The error is about source.url.
func (c *Config) Relay() (sluicebox.Options, error) {
	db, err := c.database()
	s := &c.Settings
	o := sluicebox.Options{
		Name: s.Name, Database: db, Mode: sluicebox.Mode(s.Source.Mode), TakeoverTimeout: c.takeoverTimeout(),
		Poll:    sluicebox.PollOptions{Interval: s.Source.PollInterval, BatchSize: s.Source.PollBatchSize, Backoff: poll.Backoff(s.Source.PollBackoff)},
		MaxHold: int64(s.Checkpoint.MaxHold), MaxKept: int64(s.Checkpoint.MaxKept), SweepInterval: s.Checkpoint.SweepInterval,
	}
	for i, table := range c.Outboxes() {
		o.Outboxes = append(o.Outboxes, sluicebox.Outbox{Outbox: table, Sink: s.Outboxes[i].Sink})
	}
	return o, err
}

// database returns the database of source.url.
func (c *Config) database() (sluicebox.Database, error) {
	s := &c.Settings.Source
	url, stream := s.URL.Reveal(), s.StreamURL.Reveal()
	scheme, _, _ := strings.Cut(url, ":")
	switch strings.ToLower(scheme) {
	case "postgres", "postgresql":
		return postgres.Database{URL: url, StreamURL: stream, Heartbeat: s.HeartbeatInterval}, nil
	case "mysql", "mariadb":
		return mysql.Database{URL: url, StreamURL: stream, ServerID: uint32(s.ServerID)}, nil //nolint:gosec // checked with the file
	case "mongodb", "mongodb+srv":
		return mongo.Database{URL: url, StreamURL: stream}, nil
	case "sqlite":
		return sqlite.Database{URL: url}, nil
	}
	return nil, &store.SetupError{Problem: fmt.Sprintf("source.url: unknown scheme %q", scheme)}
}

// takeoverTimeout returns 0 if rows in PROCESSING are claimed at once.
func (c *Config) takeoverTimeout() time.Duration {
	if c.Settings.Dispatch.Takeover == "at-once" {
		return 0
	}
	return time.Duration(c.Settings.Dispatch.ProcessingTimeoutSeconds) * time.Second
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
	return admin.Config{
		Listen:  c.Settings.Admin.Listen,
		Token:   c.Settings.Admin.Token.Reveal(),
		Metrics: metrics,

		Profiling: c.Settings.Admin.Profiling,
	}
}
