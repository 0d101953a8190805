package config

import (
	"time"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch"
)

// Settings is the configuration in the structure of the file. These struct tags describe
// a key:
//   - yaml: its name
//   - alias: a second name
//   - doc: its documentation
//   - enum: the allowed values
//   - later: values planned for a later version
//   - empty: the value that an empty text means
//   - only: keys beside it, each with the value that this key requires
//   - placeholder: the printed form of a secret if the usual placeholder would not load
//     again
type Settings struct {
	Name         string          `yaml:"name" doc:"Names the replication slot and the publication, the lock, and the relay's rows in its own tables: [a-z0-9_], 40 characters at most. Two relays of one name take turns."`
	Source       Source          `yaml:"source" doc:"The database whose outboxes are relayed."`
	FlowCatalyst *FlowCatalyst   `yaml:"flowcatalyst" doc:"Preset for the two outbox tables and the two endpoints of FlowCatalyst. In place of outboxes and sinks."`
	Dispatch     Dispatch        `yaml:"dispatch" doc:"How rows are sent. Most keys may also stand under a sink, for that sink alone."`
	Checkpoint   Checkpoint      `yaml:"checkpoint" doc:"How far the relay has come, and what it looks for behind that."`
	Admin        Admin           `yaml:"admin" doc:"HTTP endpoints for probes and metrics."`
	Log          Log             `yaml:"log" doc:"What is logged on standard error."`
	Outboxes     []Outbox        `yaml:"outboxes" doc:"The outbox tables, each with its layout and its sink."`
	Sinks        map[string]Sink `yaml:"sinks" doc:"The destinations by name: [a-z0-9_-], 40 characters at most. One that no outbox names gets what sluicebox replay --to-sink sends it."`
}

// Source is the section source.
type Source struct {
	URL               URL           `yaml:"url" doc:"Required. The database: postgres://user:password@host:port/database, where TLS is verify-full unless the URL says otherwise (?sslmode=...); mysql://user:password@host:port/database or mariadb://..., where TLS is verified unless the URL says otherwise (?tls=...); mongodb://user:password@host:port/database or mongodb+srv://..., where TLS is what the URL says (?tls=true); sqlite:///absolute/path.db, or sqlite:relative.db."`
	StreamURL         URL           `yaml:"stream-url" doc:"PostgreSQL, MySQL, MariaDB and MongoDB: the same database with the role that may stream its log (REPLICATION, REPLICATION SLAVE, changeStream). Empty: the role of url does both."`
	ServerID          int           `yaml:"server-id" doc:"MySQL and MariaDB: what the relay calls itself among the server's replicas, 1 to 4294967295; no other of them may have the number. 0: another above 2147483647 for each stream."`
	Mode              string        `yaml:"mode" doc:"stream reads the database's log; poll asks the tables; auto streams where the server allows it and polls where not." enum:"auto,stream,poll"`
	PollInterval      time.Duration `yaml:"poll-interval" doc:"Polling: the time between two reads."`
	PollBatchSize     int           `yaml:"poll-batch-size" doc:"Polling: the most rows in one read."`
	PollBackoff       PollBackoff   `yaml:"poll-backoff" doc:"Polling: how much less often an outbox is read that has no rows. Any row ends it."`
	HeartbeatInterval time.Duration `yaml:"heartbeat-interval" doc:"PostgreSQL: how often something is written into the log of an idle database, so that it keeps no old log for the relay."`
}

// PollBackoff is the section poll-backoff.
type PollBackoff struct {
	Threshold  int           `yaml:"threshold" doc:"How many reads in a row must find nothing before it begins."`
	Multiplier int           `yaml:"multiplier" doc:"By how much each read that finds nothing then stretches poll-interval. 1: no back-off."`
	Max        time.Duration `yaml:"max" doc:"The longest time between two reads, if poll-interval is not longer."`
}

// Dispatch is the section dispatch.
type Dispatch struct {
	Delivery                 `yaml:",inline"`
	ProcessingTimeoutSeconds int           `yaml:"processing-timeout-seconds" doc:"With takeover timeout: after how many seconds a row that somebody else left in PROCESSING is taken."`
	TakeoverWait             time.Duration `yaml:"takeover-wait" doc:"After a change of leader, the wait before the first row is sent, for receivers that cannot tell a late duplicate."`
	Takeover                 string        `yaml:"takeover" doc:"When a row that somebody else left in PROCESSING is taken: at-once, or timeout, where another relay still works on the tables." enum:"at-once,timeout"`
	Claims                   string        `yaml:"claims" doc:"Whether a row is written as PROCESSING before it is sent. off saves that write; in return all rows in flight at a change of leader are sent again, and a row that somebody cancels in the table is sent all the same." enum:"on,off"`
}

// Delivery are the keys that dispatch has for all sinks and that a sink may override.
type Delivery struct {
	APIBatchSize        int           `yaml:"api-batch-size" doc:"The most rows in one request."`
	MaxConcurrentGroups int           `yaml:"max-concurrent-groups" doc:"The most requests in flight at once; each carries rows of other message groups."`
	GlobalBufferSize    int           `yaml:"global-buffer-size" doc:"The most rows of a sink in memory. Past it rows are parked in the relay's own table if the sink does not move and another does; reading pauses when every sink is full."`
	BufferBytes         Size          `yaml:"buffer-bytes" doc:"The most bytes of payload in memory of rows that wait, such as 64MiB. Past it payloads are read again when their turn comes. Those in requests have as many, and rows too large for a request's share of them as many again, or one row."`
	MaxRetries          int           `yaml:"max-retries" doc:"Retries before a row that the receiver refuses is FAILED. An answer that says unavailable, or none, uses no retry up."`
	Backoff             Backoff       `yaml:"backoff" doc:"The wait before a retry; it doubles from initial to max."`
	RequestTimeout      time.Duration `yaml:"request-timeout" doc:"The longest that one request may take."`
	ProofWait           time.Duration `yaml:"proof-wait" doc:"How often a refused row is counted while nothing proves that the receiver works, and how long a row may stay unanswered beside others that are taken before its message group is shown as stalled."`
	RetryAfterMax       time.Duration `yaml:"retry-after-max" doc:"The longest wait that a receiver may ask for with Retry-After."`
	GiveUpAfter         time.Duration `yaml:"give-up-after" doc:"How long a row may fail, whatever the reason, before it is FAILED, also one that was only left unanswered. A longer outage of the receiver then makes dead letters. 0s: for ever."`
	OnFailed            string        `yaml:"on-failed" doc:"What becomes of a message group whose row is FAILED: continue sends the next row, block keeps the group waiting until somebody skips or requeues the row." enum:"continue,block"`
	Ungrouped           string        `yaml:"ungrouped" doc:"The order of rows without a message group: fifo sends those of a kind one after the other, parallel in any order." enum:"fifo,parallel"`
	Retry               Retry         `yaml:"retry" doc:"How failures are counted."`
}

// Retry is the section retry.
type Retry struct {
	Compat string `yaml:"compat" doc:"Counts failures as another processor does. none: only with proof that the receiver works. flowcatalyst: every failure, also one of a receiver that is down. postbox: every 4xx answer and nothing else." enum:"none,flowcatalyst,postbox" empty:"none"`
}

// claimsOff disables the writing of claims.
const claimsOff = "off"

// noCompat is the word for dispatch.CompatNone.
const noCompat = "none"

// Backoff is the section backoff.
type Backoff struct {
	Initial time.Duration `yaml:"initial" doc:"The wait before the first retry of a row."`
	Max     time.Duration `yaml:"max" doc:"The longest wait between two tries of a row."`
}

// Checkpoint is the section checkpoint.
type Checkpoint struct {
	MaxHold       Size          `yaml:"max-hold" doc:"How much of the database's log may be kept for rows that are not delivered, such as 1GiB; past it, and past half of what the server keeps, rows are parked."`
	MaxKept       Size          `yaml:"max-kept" doc:"PostgreSQL: how much of the database's log may be kept for each named checkpoint that was made with --keep-log, such as 10GiB; past it that log is given up, with an alarm, and a replay from the checkpoint reads the table."`
	SweepInterval time.Duration `yaml:"sweep-interval" doc:"How often the tables are searched for rows that came back to PENDING without an insert, while the log is read."`
}

// Admin is the section admin.
type Admin struct {
	Listen string `yaml:"listen" doc:"host:port of the endpoints. Empty: none."`
	Token  Secret `yaml:"token" doc:"Bearer token for everything but the plain probes. Needed for any address but loopback."`
	// Profiling has almost no cost until a profile is requested.
	Profiling bool `yaml:"profiling" doc:"Serve profiles of the relay under /debug/pprof/, for go tool pprof."`
}

// Log is the section log.
type Log struct {
	Level  string `yaml:"level" doc:"The least level that is logged." enum:"debug,info,warn,error"`
	Format string `yaml:"format" doc:"text for people, json for programs." enum:"text,json"`
}

// Default returns the settings of an empty configuration.
func Default() Settings {
	d, idle := dispatch.DefaultConfig(), poll.DefaultBackoff()
	return Settings{
		Name: "sluicebox",
		Source: Source{
			Mode:              "auto",
			PollInterval:      time.Second,
			PollBatchSize:     500,
			PollBackoff:       PollBackoff(idle),
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
				OnFailed:            string(d.OnFailed),
				Ungrouped:           string(d.Ungrouped),
				Retry:               Retry{Compat: noCompat},
			},
			ProcessingTimeoutSeconds: 300,
			Takeover:                 "at-once",
			Claims:                   "on",
		},
		Checkpoint: Checkpoint{MaxHold: 1 << 30, MaxKept: 10 << 30, SweepInterval: time.Minute},
		Admin:      Admin{Listen: "127.0.0.1:8090"},
		Log:        Log{Level: "info", Format: "text"},
	}
}
