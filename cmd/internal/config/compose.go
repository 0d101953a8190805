package config

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	capturemongo "github.com/sluicebox/sluicebox/capture/mongo"
	capturemysql "github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/capture/poll"
	capturepg "github.com/sluicebox/sluicebox/capture/postgres"
	capturesqlite "github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
	storemongo "github.com/sluicebox/sluicebox/store/mongo"
	storemysql "github.com/sluicebox/sluicebox/store/mysql"
	storepg "github.com/sluicebox/sluicebox/store/postgres"
	storesqlite "github.com/sluicebox/sluicebox/store/sqlite"
)

// Outboxes returns the outboxes in the order of the configuration.
func (c *Config) Outboxes() []store.Outbox {
	outboxes := make([]store.Outbox, len(c.Settings.Outboxes))
	for i, o := range c.Settings.Outboxes {
		schema, table := splitTable(o.Table)
		if c.Settings.Source.URL.Mongo() { // a collection's name may have dots
			schema, table = "", o.Table
		}
		layout := o.storeLayout(c.Settings.Source.URL.Mongo())
		layout.Unclaimed = c.Settings.Dispatch.Claims == claimsOff
		outboxes[i] = store.Outbox{Name: o.Name, Schema: schema, Table: table, Layout: layout, Kind: o.Kind, Retention: o.Retention}
	}
	return outboxes
}

// Routes returns the name of the sink of each outbox, by the outbox's name.
func (c *Config) Routes() map[string]string {
	routes := make(map[string]string, len(c.Settings.Outboxes))
	for _, o := range c.Settings.Outboxes {
		routes[o.Name] = o.Sink
	}
	return routes
}

// Sinks returns the names of all sinks in their order: those that an outbox routes to, and
// those that get what a replay is to send them.
func (c *Config) Sinks() []string { return slices.Sorted(maps.Keys(c.Settings.Sinks)) }

// Dispatch returns the dispatcher's configuration of a sink. The name is one
// that Sinks returned.
func (c *Config) Dispatch(sink string) dispatch.Config {
	s := c.Settings.Sinks[sink]
	d := s.dispatchConfig()
	d.TakeoverWait = c.Settings.Dispatch.TakeoverWait
	return d
}

// SinkType returns the type of a sink, SinkFlowCatalyst or SinkWebhook: the
// method of that name returns its configuration. The name is one that Sinks
// returned.
func (c *Config) SinkType(sink string) string { return c.Settings.Sinks[sink].Type }

// RequestTimeout returns the longest that one request of a sink may take. The
// name is one that Sinks returned.
func (c *Config) RequestTimeout(sink string) time.Duration {
	return c.Settings.Sinks[sink].RequestTimeout
}

// FlowCatalyst returns the configuration of a sink of that type. The name is one
// that Sinks returned.
func (c *Config) FlowCatalyst(sink string) flowcatalyst.Config {
	s := c.Settings.Sinks[sink]
	return s.flowCatalystConfig()
}

// flowCatalystConfig returns the sink's own form of the keys.
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

// Webhook returns the configuration of a sink of that type. Its UserAgent is
// empty where the configuration has none. The name is one that Sinks returned.
func (c *Config) Webhook(sink string) webhook.Config {
	s := c.Settings.Sinks[sink]
	return s.webhookConfig()
}

// webhookConfig returns the sink's own form of the keys.
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

// Store returns the configuration of the store of a postgres: URL.
func (c *Config) Store() storepg.Config {
	return storepg.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// SQLiteStore returns the configuration of the store of a sqlite: URL.
func (c *Config) SQLiteStore() storesqlite.Config {
	return storesqlite.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// MySQLStore returns the configuration of the store of a mysql: or mariadb: URL.
func (c *Config) MySQLStore() storemysql.Config {
	return storemysql.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// MongoStore returns the configuration of the store of a mongodb: URL.
func (c *Config) MongoStore() storemongo.Config {
	return storemongo.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// takeoverTimeout is 0 where rows in PROCESSING are taken at once.
func (c *Config) takeoverTimeout() time.Duration {
	if c.Settings.Dispatch.Takeover == "at-once" {
		return 0
	}
	return time.Duration(c.Settings.Dispatch.ProcessingTimeoutSeconds) * time.Second
}

// Stream returns the configuration of the source that reads the log of a
// postgres: URL.
func (c *Config) Stream() capturepg.Config {
	return capturepg.Config{
		URL:               c.Settings.Source.URL.Reveal(),
		StreamURL:         c.Settings.Source.StreamURL.Reveal(),
		Name:              c.Settings.Name,
		Outboxes:          c.Outboxes(),
		HeartbeatInterval: c.Settings.Source.HeartbeatInterval,
		MaxBatchBytes:     c.maxBatchBytes(),
	}
}

// MySQLStream returns the configuration of the source that reads the binlog of a
// mysql: or mariadb: URL.
func (c *Config) MySQLStream() capturemysql.Config {
	return capturemysql.Config{
		URL:       c.Settings.Source.URL.Reveal(),
		StreamURL: c.Settings.Source.StreamURL.Reveal(),
		Name:      c.Settings.Name,
		Outboxes:  c.Outboxes(),
		ServerID:  uint32(c.Settings.Source.ServerID), //nolint:gosec // checked with the file

		MaxBatchBytes: c.maxBatchBytes(),
	}
}

// MongoStream returns the configuration of the source that reads the change stream of
// a mongodb: URL.
func (c *Config) MongoStream() capturemongo.Config {
	return capturemongo.Config{
		URL:       c.Settings.Source.URL.Reveal(),
		StreamURL: c.Settings.Source.StreamURL.Reveal(),
		Name:      c.Settings.Name,
		Outboxes:  c.Outboxes(),

		MaxBatchBytes: c.maxBatchBytes(),
	}
}

// SQLiteStream returns the configuration of the source that reads the log of a
// sqlite: URL.
func (c *Config) SQLiteStream() capturesqlite.Config {
	return capturesqlite.Config{
		URL: c.Settings.Source.URL.Reveal(), Name: c.Settings.Name, Outboxes: c.Outboxes(), MaxBatchBytes: c.maxBatchBytes(),
	}
}

// Poll returns the configuration of the source that reads the tables.
func (c *Config) Poll() poll.Config {
	return poll.Config{
		Interval:  c.Settings.Source.PollInterval,
		BatchSize: c.Settings.Source.PollBatchSize,
		Backoff:   poll.Backoff(c.Settings.Source.PollBackoff),
		Outboxes:  c.Outboxes(),
		Room:      c.SmallestBuffer(),
	}
}

// BatchQueueSize is how many batches may wait between the source and the lanes, so that
// neither waits for the other's next turn.
const BatchQueueSize = 16

// maxBatchBytes bounds a batch, so that those that wait have no more than a buffer.
func (c *Config) maxBatchBytes() int {
	return int(max(64<<10, min(4<<20, c.SmallestBuffer().Bytes/BatchQueueSize)))
}

// MaxSourcePayload is the largest payload that a source carries: one in each batch that waits
// is a quarter of a buffer. Larger ones are left to the claim.
func (c *Config) MaxSourcePayload() int {
	return int(max(1, c.SmallestBuffer().Bytes/(4*BatchQueueSize)))
}

// TotalBufferBytes is how many bytes the buffers of all sinks have.
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

// SmallestBuffer is the room of the smallest buffer of a sink.
func (c *Config) SmallestBuffer() (least store.ReadLimit) {
	for _, name := range c.Routes() {
		d := c.Dispatch(name)
		if least.Rows == 0 || d.BufferRows < least.Rows {
			least.Rows = d.BufferRows
		}
		if least.Bytes == 0 || d.BufferBytes < least.Bytes {
			least.Bytes = d.BufferBytes
		}
	}
	return least
}

// Admin returns the configuration of the HTTP endpoints, which show metrics.
func (c *Config) Admin(metrics prometheus.Gatherer) admin.Config {
	return admin.Config{
		Listen:  c.Settings.Admin.Listen,
		Token:   c.Settings.Admin.Token.Reveal(),
		Metrics: metrics,

		Profiling: c.Settings.Admin.Profiling,
	}
}
