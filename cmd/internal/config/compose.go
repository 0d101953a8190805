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

// Store returns the configuration of the PostgreSQL store.
func (c *Config) Store() storepg.Config {
	return storepg.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// SQLiteStore returns the configuration of the SQLite store.
func (c *Config) SQLiteStore() storesqlite.Config {
	return storesqlite.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// MySQLStore returns the configuration of the MySQL and MariaDB store.
func (c *Config) MySQLStore() storemysql.Config {
	return storemysql.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// MongoStore returns the configuration of the MongoDB store.
func (c *Config) MongoStore() storemongo.Config {
	return storemongo.Config{
		URL:             c.Settings.Source.URL.Reveal(),
		Name:            c.Settings.Name,
		Outboxes:        c.Outboxes(),
		TakeoverTimeout: c.takeoverTimeout(),
	}
}

// takeoverTimeout returns 0 if rows in PROCESSING are claimed at once.
func (c *Config) takeoverTimeout() time.Duration {
	if c.Settings.Dispatch.Takeover == "at-once" {
		return 0
	}
	return time.Duration(c.Settings.Dispatch.ProcessingTimeoutSeconds) * time.Second
}

// Stream returns the configuration of the source that reads the WAL of PostgreSQL.
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

// MySQLStream returns the configuration of the source that reads the binlog of MySQL or
// MariaDB.
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

// MongoStream returns the configuration of the source that reads a MongoDB change stream.
func (c *Config) MongoStream() capturemongo.Config {
	return capturemongo.Config{
		URL:       c.Settings.Source.URL.Reveal(),
		StreamURL: c.Settings.Source.StreamURL.Reveal(),
		Name:      c.Settings.Name,
		Outboxes:  c.Outboxes(),

		MaxBatchBytes: c.maxBatchBytes(),
	}
}

// SQLiteStream returns the configuration of the source that reads the log table of
// SQLite.
func (c *Config) SQLiteStream() capturesqlite.Config {
	return capturesqlite.Config{
		URL: c.Settings.Source.URL.Reveal(), Name: c.Settings.Name, Outboxes: c.Outboxes(), MaxBatchBytes: c.maxBatchBytes(),
	}
}

// Poll returns the configuration of the source that polls the tables.
func (c *Config) Poll() poll.Config {
	return poll.Config{
		Interval:  c.Settings.Source.PollInterval,
		BatchSize: c.Settings.Source.PollBatchSize,
		Backoff:   poll.Backoff(c.Settings.Source.PollBackoff),
		Outboxes:  c.Outboxes(),
		Room:      c.SmallestBuffer(),
	}
}

// BatchQueueSize is the number of batches queued between the source and the lanes, so
// that neither waits for the other to be scheduled.
const BatchQueueSize = 16

// maxBatchBytes limits a batch, so that the queued batches together hold at most one
// buffer.
func (c *Config) maxBatchBytes() int {
	return int(max(64<<10, min(4<<20, c.SmallestBuffer().Bytes/BatchQueueSize)))
}

// MaxSourcePayload is the largest payload that a source carries. With one payload of this
// size in each queued batch, the queue holds a quarter of a buffer. The claim reads
// larger payloads.
func (c *Config) MaxSourcePayload() int {
	return int(max(1, c.SmallestBuffer().Bytes/(4*BatchQueueSize)))
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

// SmallestBuffer returns the size of the smallest sink buffer.
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

// Admin returns the configuration of the HTTP endpoints.
func (c *Config) Admin(metrics prometheus.Gatherer) admin.Config {
	return admin.Config{
		Listen:  c.Settings.Admin.Listen,
		Token:   c.Settings.Admin.Token.Reveal(),
		Metrics: metrics,

		Profiling: c.Settings.Admin.Profiling,
	}
}
