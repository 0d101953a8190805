package config

import (
	"log/slog"
	"time"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/cmd/internal/notices"
	"github.com/sluicebox/sluicebox/cmd/internal/shards"
	"github.com/sluicebox/sluicebox/cmd/internal/tracing"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Settings is the configuration in the structure of the file. These struct tags describe
// a key:
//   - yaml: its name
//   - alias: a second name
//   - doc: its documentation
//   - enum: the allowed values
//   - empty: the value that an empty text means
//   - omit: the key is not printed without a value
//   - single: one value may stand in place of a list
//   - only: keys beside it, each with the values that this key requires (type=webhook|log) or
//     that it excludes (type!=log). Several fields of a section may have one name with different
//     conditions
//   - placeholder: the printed form of a secret if the usual placeholder would not load
//     again
type Settings struct {
	Name         string          `yaml:"name" doc:"The name of the replication slot, the publication, the leader lock, and the relay's rows in its tables: [a-z0-9_], at most 40 characters. Of several relays with one name, one is the leader and the others stand by. A relay of another name does not know the checkpoint, the spilled rows and the dead letters of this one."`
	Mode         string          `yaml:"mode" doc:"relay sends rows. shadow watches a polling processor and compares: it sends and writes nothing; see [migrate.md](migrate.md#try-it-beside-your-processor-first)." enum:"relay,shadow"`
	Source       Source          `yaml:"source" doc:"The database whose outboxes are relayed."`
	Sources      []NamedSource   `yaml:"sources" omit:"true" doc:"Several databases that one process relays, instead of name and source; see [sources.md](sources.md)."`
	Process      string          `yaml:"process" omit:"true" doc:"With sources: the name of this process, by which several processes share the sources. Empty: the name of the host."`
	SpreadAfter  time.Duration   `yaml:"spread-after" omit:"true" doc:"With sources: how long a process stands by until it takes over the sources that are rather its own, and the least time between two moves of a source. 0s stands for 30s."`
	FlowCatalyst *FlowCatalyst   `yaml:"flowcatalyst" doc:"Preset for the two outbox tables and the two endpoints of FlowCatalyst, instead of outboxes and sinks."`
	Dispatch     Dispatch        `yaml:"dispatch" doc:"How rows are sent. A sink can override most keys."`
	Checkpoint   Checkpoint      `yaml:"checkpoint" doc:"Retained log, checkpoints and the sweep."`
	Admin        Admin           `yaml:"admin" doc:"HTTP endpoints for probes and metrics."`
	Ingest       *Ingest         `yaml:"ingest" doc:"An HTTP server that takes rows from services, see [ingest.md](ingest.md). Every relay of a name has one, also while it stands by. Without the section there is none."`
	Scale        *shards.Config  `yaml:"scale" doc:"A topic of Kafka between capture and dispatch, by which several processes share the outboxes; see [scale.md](scale.md). Without the section one process does all."`
	Notices      *notices.Config `yaml:"notices" doc:"Calls a webhook or a command when a condition needs somebody, and when it has ended; see [operating.md](operating.md#notices). Without the section there are no notices."`
	Tracing      *tracing.Config `yaml:"tracing" doc:"Exports the way of rows as spans of OpenTelemetry; see [operating.md](operating.md#traces). tracing: {} takes all from the variables OTEL_…. Without the section there are spans only if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set."`
	Shadow       Shadow          `yaml:"shadow" doc:"With mode: shadow or sluicebox shadow: what to look for."`
	Log          Log             `yaml:"log" doc:"The log on standard error."`
	Outboxes     []Outbox        `yaml:"outboxes" doc:"The outbox tables, each with its layout and its sink or its routes."`
	Sinks        map[string]Sink `yaml:"sinks" doc:"The destinations by name: [a-z0-9_-], at most 40 characters. A sink that no outbox names serves only sluicebox replay --to-sink."`
}

// Source is the section source.
type Source struct {
	URL               URL           `yaml:"url" doc:"Required. The database: postgres://user:password@host:port/database, where TLS is verify-full, or prefer on loopback, unless the URL says otherwise (?sslmode=...); mysql://user:password@host:port/database or mariadb://..., where TLS is verified, or preferred on loopback, unless the URL says otherwise (?tls=...); mongodb://user:password@host:port/database or mongodb+srv://..., where TLS is what the URL says (?tls=true); sqlite:///absolute/path.db, or sqlite:relative.db."`
	StreamURL         URL           `yaml:"stream-url" doc:"PostgreSQL, MySQL, MariaDB and MongoDB: the same database with a role that may stream its log (REPLICATION, REPLICATION SLAVE, changeStream). Empty: url is used for both."`
	ServerID          int           `yaml:"server-id" doc:"MySQL and MariaDB: the relay's server id, 1 to 4294967295, unique among the server's replicas. 0: a random one above 2147483647 for each stream."`
	Mode              string        `yaml:"mode" doc:"stream reads the database's log; poll reads the tables; auto streams if the server allows it, else polls." enum:"auto,stream,poll"`
	PasswordCommand   []string      `yaml:"password-command" omit:"true" doc:"PostgreSQL, MySQL and MariaDB: a program with its arguments whose output is the password of each new connection, for tokens that expire; see [sources.md](sources.md#passwords-from-a-command)."`
	PollInterval      time.Duration `yaml:"poll-interval" doc:"Polling: the time between two polls."`
	PollBatchSize     int           `yaml:"poll-batch-size" doc:"Polling: the most rows per poll."`
	PollBackoff       poll.Backoff  `yaml:"poll-backoff" doc:"Polling: the backoff for an outbox without rows. Any row resets it."`
	HeartbeatInterval time.Duration `yaml:"heartbeat-interval" doc:"PostgreSQL: how often to write a heartbeat into the WAL of an idle database, so that the server can discard old WAL."`
}

// NamedSource is one entry of sources.
type NamedSource struct {
	Name     string `yaml:"name" doc:"Required. The name of the source and of its relay; see name. On one server it must be unique."`
	Source   `yaml:",inline"`
	Outboxes []string `yaml:"outboxes" single:"true" omit:"true" doc:"The names of its outboxes. Empty: all outboxes of the file."`
}

// Dispatch is the section dispatch.
type Dispatch struct {
	Delivery                 `yaml:",inline"`
	ProcessingTimeoutSeconds int           `yaml:"processing-timeout-seconds" doc:"With takeover timeout: the age in seconds at which the relay claims a row that another processor left in PROCESSING. That processor has its own timeout for the relay's rows."`
	TakeoverWait             time.Duration `yaml:"takeover-wait" doc:"The wait before a new leader sends its first row, for receivers that cannot detect a late duplicate: for example 30s, the request-timeout. Each start of a relay waits as well."`
	Takeover                 string        `yaml:"takeover" doc:"When to claim a row left in PROCESSING by another processor: at-once, or timeout if another processor still works on the tables." enum:"at-once,timeout"`
	Claims                   string        `yaml:"claims" doc:"When to write PROCESSING into a row. late: before a row is sent that was tried or spilled, and for any other row only if its request is not answered within 100ms; the relay reads a row that has waited for more than a second before it sends it. The relay uses on where late is unsafe, for example with takeover: timeout or a synchronous standby; see operating.md, Late claims. on: before each row is sent. off: never, but all rows in flight at a change of leader are sent again, and a row cancelled in the table is still sent." enum:"late,on,off"`
}

// Delivery are the keys that dispatch has for all sinks and that a sink may override.
type Delivery struct {
	dispatch.Config `yaml:",inline"`

	RequestTimeout time.Duration `yaml:"request-timeout" doc:"The timeout of a request."`
}

// claimsOff is the value of dispatch.claims that disables the writing of claims.
const claimsOff = "off"

// Checkpoint is the section checkpoint.
type Checkpoint struct {
	MaxHold       Size          `yaml:"max-hold" doc:"The most log that the database may retain for undelivered rows, for example 1GiB. Above it, or above half of the server's own limit, rows are spilled, unless a backlog is delivered fast."`
	MaxKept       Size          `yaml:"max-kept" doc:"PostgreSQL: the most WAL that the server may retain for each named checkpoint created with --keep-log, for example 10GiB. Above it the WAL is discarded, with an alarm, and a replay from the checkpoint reads the table."`
	SweepInterval time.Duration `yaml:"sweep-interval" doc:"While streaming: how often to search the tables for rows reset to PENDING without an insert."`
}

// Admin is the section admin.
type Admin struct {
	Listen      string       `yaml:"listen" doc:"host:port of the endpoints. Empty: none."`
	Token       sink.Secret  `yaml:"token" doc:"Bearer token for all endpoints except the plain probes. Required for any address except loopback."`
	ViewerToken sink.Secret  `yaml:"viewer-token" doc:"Bearer token that reads and may not act: no pause, no skip, no payloads. Needs token."`
	Tokens      []AdminToken `yaml:"tokens" doc:"Further tokens, one for each person or program, so that the log of actions says who acted. Needs token."`
	Hosts       []string     `yaml:"hosts" doc:"Further names of the relay in the browser's address, without port, for example that of a proxy. Other names are refused, except with a bearer token."`
	// Profiling has almost no cost until a profile is requested.
	Profiling bool `yaml:"profiling" doc:"Serve profiles under /debug/pprof/, for go tool pprof."`
}

// Shadow is the section shadow.
type Shadow struct {
	StuckAfter     time.Duration `yaml:"stuck-after" doc:"How long a taken row may be unfinished before it counts as stuck."`
	LostAfter      time.Duration `yaml:"lost-after" doc:"How long a row may wait to be taken before it counts as not reached. Where nothing marks taken rows: to be delivered."`
	ReportInterval time.Duration `yaml:"report-interval" doc:"The time between two reports in the log."`
	MaxRows        int           `yaml:"max-rows" doc:"The most unfinished rows in memory, and the most finished ones, about 400 bytes each. Rows beyond it are counted, and not judged."`
}

// AdminToken is one entry of admin.tokens.
type AdminToken struct {
	Name  string      `yaml:"name" doc:"Required. The name in the log of actions: 1 to 60 letters, digits and . _ @ -. Not operator, viewer or local."`
	Role  string      `yaml:"role" doc:"Required. operator acts like token, viewer only reads like viewer-token." enum:"operator,viewer"`
	Token sink.Secret `yaml:"token" doc:"Required. Bearer token, other than all others. Prefer a reference: ${file:/run/secrets/token} or ${env:NAME}."`
}

// Log is the section log.
type Log struct {
	Level  string `yaml:"level" doc:"The lowest level to log." enum:"debug,info,warn,error"`
	Format string `yaml:"format" doc:"text for people, json for programs." enum:"text,json"`
}

// SlogLevel returns the level.
func (l *Log) SlogLevel() slog.Level {
	level := slog.LevelInfo
	_ = level.UnmarshalText([]byte(l.Level)) // Load has validated it
	return level
}

// defaultSource returns the section source with default values.
func defaultSource() Source {
	return Source{
		Mode:              "auto",
		PollInterval:      time.Second,
		PollBatchSize:     500,
		PollBackoff:       poll.DefaultBackoff(),
		HeartbeatInterval: 30 * time.Second,
	}
}

// Default returns the settings of an empty configuration.
func Default() Settings {
	return Settings{
		Name:   "sluicebox",
		Mode:   "relay",
		Source: defaultSource(),
		Dispatch: Dispatch{
			Delivery:                 Delivery{Config: dispatch.DefaultConfig(), RequestTimeout: 30 * time.Second},
			ProcessingTimeoutSeconds: 300,
			Takeover:                 "at-once",
			Claims:                   "late",
		},
		Checkpoint: Checkpoint{MaxHold: 1 << 30, MaxKept: 10 << 30, SweepInterval: time.Minute},
		Admin:      Admin{Listen: "127.0.0.1:8090"},
		Shadow:     Shadow{StuckAfter: 5 * time.Minute, LostAfter: 15 * time.Minute, ReportInterval: time.Minute, MaxRows: 100_000},
		Log:        Log{Level: "info", Format: "text"},
	}
}
