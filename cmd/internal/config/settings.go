package config

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
)

// Settings is the configuration as the file lays it out. The tag `yaml` names a
// key, `alias` a second name for it, `doc` says what it means, `enum` lists the
// values it may have, `later` those that a later version may have.
type Settings struct {
	Name         string          `yaml:"name" doc:"Names the replication slot, the publication and the relay's rows in its own tables: [a-z0-9_], 40 characters at most. Two relays of one name take turns."`
	Source       Source          `yaml:"source" doc:"The database whose outboxes are relayed."`
	FlowCatalyst *FlowCatalyst   `yaml:"flowcatalyst" doc:"Preset for the two outbox tables and the two endpoints of FlowCatalyst. In place of outboxes and sinks."`
	Dispatch     Dispatch        `yaml:"dispatch" doc:"How rows are sent. Most keys may also stand under a sink, for that sink alone."`
	Admin        Admin           `yaml:"admin" doc:"HTTP endpoints for probes and metrics."`
	Log          Log             `yaml:"log" doc:"What is logged on standard error."`
	Outboxes     []Outbox        `yaml:"outboxes" doc:"The outbox tables, each with its layout and its sink."`
	Sinks        map[string]Sink `yaml:"sinks" doc:"The destinations by name: [a-z0-9_-], 40 characters at most."`
}

// Source is the section source.
type Source struct {
	URL               URL           `yaml:"url" doc:"Required. The database: postgres://user:password@host:port/database, where TLS is verify-full unless the URL says otherwise (?sslmode=...), or sqlite:///absolute/path.db, or sqlite:relative.db." later:"mysql,mariadb,mongodb"`
	StreamURL         URL           `yaml:"stream-url" doc:"PostgreSQL: the same database with the role that may stream its log (REPLICATION). Empty: the role of url does both."`
	Mode              string        `yaml:"mode" doc:"stream reads the database's log; poll asks the tables; auto streams where the server allows it and polls where not." enum:"auto,stream,poll"`
	PollInterval      time.Duration `yaml:"poll-interval" doc:"Polling: the time between two reads."`
	PollBatchSize     int           `yaml:"poll-batch-size" doc:"Polling: the most rows in one read."`
	HeartbeatInterval time.Duration `yaml:"heartbeat-interval" doc:"How often something is written into the log of an idle database, so that it keeps no old log for the relay."`
}

// FlowCatalyst is the section flowcatalyst, the preset.
type FlowCatalyst struct {
	Wire              string `yaml:"wire" doc:"array: the body is a list of rows. items: the body is an object with a list, and the answer has a result for each row." enum:"array,items"`
	APIBaseURL        URL    `yaml:"api-base-url" doc:"Required. The address of the API without its paths: https://host[:port][/prefix]."`
	APIToken          Secret `yaml:"api-token" doc:"Bearer token. Best a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	EventsTable       string `yaml:"events-table" doc:"The table of events, [schema.]table. Empty: no events are relayed."`
	DispatchJobsTable string `yaml:"dispatch-jobs-table" doc:"The table of dispatch jobs, [schema.]table. Empty: no dispatch jobs are relayed."`
	CAFile            string `yaml:"ca-file" doc:"PEM file of the authorities to trust for the API, in place of the system's."`
}

// Dispatch is the section dispatch.
type Dispatch struct {
	Delivery                 `yaml:",inline"`
	ProcessingTimeoutSeconds int    `yaml:"processing-timeout-seconds" doc:"With takeover timeout: after how many seconds a row that somebody else left in PROCESSING is taken."`
	Takeover                 string `yaml:"takeover" doc:"When a row that somebody else left in PROCESSING is taken: at-once, or timeout, where another relay still works on the tables." enum:"at-once,timeout"`
}

// Delivery are the keys that dispatch has for all sinks and a sink may have for
// itself.
type Delivery struct {
	APIBatchSize        int           `yaml:"api-batch-size" doc:"The most rows in one request."`
	MaxConcurrentGroups int           `yaml:"max-concurrent-groups" doc:"The most requests in flight at once; each carries rows of other message groups."`
	GlobalBufferSize    int           `yaml:"global-buffer-size" doc:"The most rows in memory. Reading pauses there."`
	BufferBytes         Size          `yaml:"buffer-bytes" doc:"The most bytes of payload in memory, such as 64MiB."`
	MaxRetries          int           `yaml:"max-retries" doc:"Counted attempts after the first; then the row is FAILED."`
	Backoff             Backoff       `yaml:"backoff" doc:"The wait before a retry; it doubles from initial to max."`
	RequestTimeout      time.Duration `yaml:"request-timeout" doc:"The longest that one request may take."`
	ProofWait           time.Duration `yaml:"proof-wait" doc:"How often a refused row is counted while nothing proves that the receiver works."`
	RetryAfterMax       time.Duration `yaml:"retry-after-max" doc:"The longest wait that a receiver may ask for with Retry-After."`
}

// Backoff is the section backoff.
type Backoff struct {
	Initial time.Duration `yaml:"initial" doc:"The wait before the first retry of a row."`
	Max     time.Duration `yaml:"max" doc:"The longest wait between two tries of a row."`
}

// Admin is the section admin.
type Admin struct {
	Listen string `yaml:"listen" doc:"host:port of the endpoints. Empty: none."`
	Token  Secret `yaml:"token" doc:"Bearer token for everything but the plain probes. Needed for any address but loopback."`
}

// Log is the section log.
type Log struct {
	Level  string `yaml:"level" doc:"The least level that is logged." enum:"debug,info,warn,error"`
	Format string `yaml:"format" doc:"text for people, json for programs." enum:"text,json"`
}

// Outbox is one entry of outboxes.
type Outbox struct {
	Name   string `yaml:"name" doc:"Names the outbox in messages and metrics. Default: the table as written. Give one before a table is renamed."`
	Table  string `yaml:"table" doc:"Required. The table, [schema.]table, in its exact spelling."`
	Layout string `yaml:"layout" doc:"Required. Which columns and words the table has." enum:"flowcatalyst,outbox-messages"`
	Kind   string `yaml:"kind" doc:"What the rows are, for layouts without a column for it (flowcatalyst)." enum:"EVENT,DISPATCH_JOB,AUDIT_LOG"`
	Sink   string `yaml:"sink" doc:"Required. The name of the sink that the rows go to."`
}

// Sink is one entry of sinks.
type Sink struct {
	Type       string `yaml:"type" doc:"Required. What the destination is." enum:"flowcatalyst" later:"webhook,kafka,nats,camunda,redis"`
	Wire       string `yaml:"wire" doc:"array: the body is a list of rows. items: the body is an object with a list, and the answer has a result for each row." enum:"array,items"`
	APIBaseURL URL    `yaml:"api-base-url" doc:"Required. The address of the API without its paths: https://host[:port][/prefix]."`
	Token      Secret `yaml:"token" alias:"api-token" doc:"Bearer token. Best a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	CAFile     string `yaml:"ca-file" doc:"PEM file of the authorities to trust for the API, in place of the system's."`
	Delivery   `yaml:",inline"`
}

// Default returns the settings of an empty configuration.
func Default() Settings {
	d := dispatch.DefaultConfig()
	return Settings{
		Name: "sluicebox",
		Source: Source{
			Mode:              "auto",
			PollInterval:      time.Second,
			PollBatchSize:     500,
			HeartbeatInterval: 30 * time.Second,
		},
		Dispatch: Dispatch{
			Delivery: Delivery{
				APIBatchSize:        d.APIBatchSize,
				MaxConcurrentGroups: d.MaxConcurrentGroups,
				GlobalBufferSize:    d.BufferRows,
				BufferBytes:         Size(d.BufferBytes),
				MaxRetries:          d.MaxRetries,
				Backoff:             Backoff{Initial: d.BackoffInitial, Max: d.BackoffMax},
				RequestTimeout:      30 * time.Second,
				ProofWait:           d.ProofWait,
				RetryAfterMax:       d.RetryAfterMax,
			},
			ProcessingTimeoutSeconds: 300,
			Takeover:                 "at-once",
		},
		Admin: Admin{Listen: "127.0.0.1:8090"},
		Log:   Log{Level: "info", Format: "text"},
	}
}

// defaultPreset returns the preset as it is where only its address is given.
func defaultPreset() FlowCatalyst {
	return FlowCatalyst{
		Wire:              "array",
		EventsTable:       "outbox_events",
		DispatchJobsTable: "outbox_dispatch_jobs",
	}
}

// defaultSink returns a sink that says nothing for itself.
func defaultSink(d Delivery) Sink { return Sink{Wire: "array", Delivery: d} }
