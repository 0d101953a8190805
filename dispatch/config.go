package dispatch

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config configures the dispatcher of one sink. The tags are the keys of the program's
// configuration file.
type Config struct {
	// APIBatchSize is the maximum number of rows in one request, from one lane or several.
	APIBatchSize int `yaml:"api-batch-size" doc:"The most rows in one request. Default of Kafka, unless dispatch has the key: 500."`

	// MaxConcurrentGroups is the maximum number of requests in flight.
	MaxConcurrentGroups int `yaml:"max-concurrent-groups" doc:"The most requests in flight; each carries rows of other message groups. Default of webhook and camunda, unless dispatch has the key: 64."`

	// RateLimit is the maximum rate of requests; 0 is no limit. Retries and probes count,
	// pings do not.
	RateLimit Rate `yaml:"rate-limit" doc:"The most requests in a time, for example 100/s or 600/m, retries included. Rows are claimed at most a second before they may be sent. 0/s: no limit."`

	// BufferRows is the maximum number of rows in memory that came from the source, without
	// rows in flight. Capture pauses when the buffers of all sinks are full. The buffer may
	// hold more in three cases:
	//
	//   - up to twice as many rows while lanes are being spilled
	//   - half as many more that were reloaded
	//   - half as many more whose outcome the table refuses; then no row is sent
	BufferRows int `yaml:"global-buffer-size" doc:"The most rows of a sink in memory. Above it rows are spilled to the relay's table if this sink is stuck and another is not; capture pauses when every sink is full."`

	// BufferBytes is the maximum payload of waiting rows in memory, in bytes. Payloads
	// beyond it are dropped and read again at the claim. Claims and requests may hold as
	// many bytes again. Rows larger than a request's share may hold as many once more, or a
	// single one of any size; see internal/lane.
	BufferBytes int64 `yaml:"buffer-bytes" doc:"The most bytes of payload in memory for waiting rows, for example 64MiB. Payloads above it are read again when the row is sent. Requests in flight may hold as much again, and rows too large for a request's share as much once more, or one row."`

	// MaxRetries is the number of retries before a refused row is marked FAILED. An attempt
	// on an unavailable receiver does not count.
	MaxRetries int `yaml:"max-retries" doc:"How often a failure that counts is retried; the next one makes the row FAILED: with 3, the fourth. An unavailable receiver never counts; see delivery.md, What counts."`

	// Backoff is the wait before a retry.
	Backoff Backoff `yaml:"backoff" doc:"The backoff before a retry; it doubles from initial to max."`

	// ProofWait is how often a refused row counts without proof that the receiver works. A
	// row that goes unanswered for as long, while other rows are accepted, stalls its lane.
	ProofWait time.Duration `yaml:"proof-wait" doc:"How often a refusal (a 500, for example) counts against a row while the receiver accepts no other row, and how long a row may go without a response, while others are accepted, before its message group is shown as stalled."`

	// RetryAfterMax caps the Retry-After of a receiver.
	RetryAfterMax time.Duration `yaml:"retry-after-max" doc:"The longest Retry-After that is obeyed."`

	// GiveUpAfter is how long a row may fail, for any reason, before it is marked FAILED.
	// It applies even to rows that only went unanswered, with or without proof. 0 means no
	// limit.
	GiveUpAfter time.Duration `yaml:"give-up-after" doc:"How long a row may fail for any reason, also without a response, before it is FAILED. With it, a longer outage of the receiver makes dead letters. 0s: forever."`

	// OnFailed controls a lane after a FAILED row.
	OnFailed OnFailed `yaml:"on-failed" doc:"What happens to a message group after a FAILED row. continue sends the next row; block holds the group until an operator skips or requeues the row." enum:"continue,block"`

	// Ungrouped controls the order of rows without a group.
	Ungrouped Ungrouped `yaml:"ungrouped" doc:"The order of rows without a message group: fifo sends rows of a kind one after the other, parallel in any order." enum:"fifo,parallel"`

	// Chain sends ChainHeader with each row of an ordered lane; see dispatch/internal/chain.
	Chain bool `yaml:"chain" doc:"Sends the header Sluicebox-Chain, by which a receiver notices that a row of a message group is missing or out of order; see verify.md. Rows without a group have it too, with ungrouped: fifo. Not for types and formats whose messages have no header for each row, nor for a destination or a key that depends on more than the group and the kind."`

	// Retry is how failures are counted.
	Retry Retry `yaml:"retry" doc:"How failures are counted."`

	// TakeoverWait is the pause between the start of Run and the first claim.
	TakeoverWait time.Duration `yaml:"-"`
}

// minRate is the least rate limit.
const minRate Rate = 1.0 / 3600

// Backoff is the wait before a retry of a row. It doubles with each consecutive failure from
// Initial to Max. Each wait is reduced at random by up to a fifth, so that lanes do not retry
// in step.
type Backoff struct {
	Initial time.Duration `yaml:"initial" doc:"The backoff before the first retry of a row."`
	Max     time.Duration `yaml:"max" doc:"The longest backoff between two attempts of a row."`
}

// Retry is how failures are counted.
type Retry struct {
	// Compat counts like another processor; CompatNone is the proof rule.
	Compat Compat `yaml:"compat" doc:"Counts failures like another processor. none: as in delivery.md, What counts. flowcatalyst: every failure, also of a receiver that is down. postbox: only 4xx responses." enum:"none,flowcatalyst,postbox" empty:"none"`
}

// claimAhead is how many requests are claimed before a sender is free for them. For
// example, with one row per request and a receiver that takes 20 ms, 64 senders finish
// three requests per millisecond, and a claim takes a few milliseconds.
func (c *Config) claimAhead() int { return (c.MaxConcurrentGroups + 3) / 4 }

// OnFailed controls a lane after a FAILED row.
type OnFailed string

// Values of OnFailed.
const (
	// Continue sends the next row.
	Continue OnFailed = "continue"

	// Block keeps the lane blocked until an operator skips or requeues the row.
	Block OnFailed = "block"
)

// Ungrouped controls the order of rows without a group.
type Ungrouped string

// Values of Ungrouped.
const (
	// FIFO puts rows without a group into one lane per outbox and kind.
	FIFO Ungrouped = "fifo"

	// Parallel gives each row without a group its own lane.
	Parallel Ungrouped = "parallel"
)

// Compat counts failures like another processor, for teams that rely on its rules.
type Compat string

// Values of Compat.
const (
	// CompatNone is the proof rule.
	CompatNone Compat = "none"

	// CompatFlowCatalyst counts every failure, whatever its cause. An outage of the
	// receiver creates dead letters.
	CompatFlowCatalyst Compat = "flowcatalyst"

	// CompatPostbox counts every 4xx and nothing else. A row that crashes the receiver is
	// retried forever.
	CompatPostbox Compat = "postbox"
)

// DefaultConfig returns the defaults listed in the README.
func DefaultConfig() Config {
	return Config{
		APIBatchSize:        100,
		MaxConcurrentGroups: 10,
		BufferRows:          10000,
		BufferBytes:         64 << 20,
		MaxRetries:          3,
		Backoff:             Backoff{Initial: 200 * time.Millisecond, Max: 30 * time.Second},
		RetryAfterMax:       5 * time.Minute,
		ProofWait:           5 * time.Minute,
		OnFailed:            Continue,
		Ungrouped:           FIFO,
		Retry:               Retry{CompatNone},
	}
}

// Validate reports every value that is out of range, by configuration key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	atLeast := func(key string, v, minimum int64) {
		if v < minimum {
			bad.Add(key, "is %d, must be at least %d", v, minimum)
		}
	}

	atLeast("api-batch-size", int64(c.APIBatchSize), 1)
	atLeast("max-concurrent-groups", int64(c.MaxConcurrentGroups), 1)
	atLeast("global-buffer-size", int64(c.BufferRows), 1)
	atLeast("buffer-bytes", c.BufferBytes, 1)
	atLeast("max-retries", int64(c.MaxRetries), 0)
	if c.RateLimit < 0 || c.RateLimit > 0 && c.RateLimit < minRate {
		bad.Add("rate-limit", "is %s, must be at least 1/h, or 0/s for no limit", c.RateLimit)
	}
	if c.Backoff.Initial <= 0 {
		bad.Add("backoff.initial", "is %s, must be above 0", c.Backoff.Initial)
	}
	if c.Backoff.Max < c.Backoff.Initial {
		bad.Add("backoff.max", "is %s, must not be below backoff.initial (%s)", c.Backoff.Max, c.Backoff.Initial)
	}
	if c.ProofWait <= 0 {
		bad.Add("proof-wait", "is %s, must be above 0", c.ProofWait)
	}
	if c.RetryAfterMax <= 0 {
		bad.Add("retry-after-max", "is %s, must be above 0", c.RetryAfterMax)
	}
	if c.GiveUpAfter < 0 {
		bad.Add("give-up-after", "is %s, must not be negative", c.GiveUpAfter)
	}
	if c.TakeoverWait < 0 {
		bad.Add("takeover-wait", "is %s, must not be negative", c.TakeoverWait)
	}
	oneOf(&bad, "on-failed", c.OnFailed, Continue, Block)
	oneOf(&bad, "ungrouped", c.Ungrouped, FIFO, Parallel)
	oneOf(&bad, "retry.compat", c.Retry.Compat, CompatNone, CompatFlowCatalyst, CompatPostbox)
	return bad.Err()
}

func oneOf[T ~string](bad *store.FieldErrors, key string, v T, choices ...T) {
	if !slices.Contains(choices, v) {
		bad.Add(key, "is %q, must be one of %q", v, choices)
	}
}

// Rate is a number of requests per second. Its text is a number and a unit of time, for
// example 100/s, 600/m or 1000/h.
type Rate float64

// rateUnit is a unit of rates.
type rateUnit struct {
	name    string
	seconds float64
}

func rateUnits() []rateUnit { return []rateUnit{{"/s", 1}, {"/m", 60}, {"/h", 3600}} }

// ParseRate parses a rate.
func ParseRate(text string) (Rate, error) {
	for _, u := range rateUnits() {
		if number, ok := strings.CutSuffix(strings.TrimSpace(text), u.name); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err == nil && n >= 0 && n <= 1e9 {
				return Rate(n / u.seconds), nil
			}
		}
	}
	return 0, errors.New("is not a rate such as 100/s, 600/m or 1000/h")
}

// String returns the rate in the first unit in which it is a whole number.
func (r Rate) String() string {
	for _, u := range rateUnits() {
		if n := float64(r) * u.seconds; strconv.FormatFloat(n, 'g', 12, 64) == strconv.FormatInt(int64(n+0.5), 10) {
			return strconv.FormatInt(int64(n+0.5), 10) + u.name
		}
	}
	return strconv.FormatFloat(float64(r), 'g', 12, 64) + "/s"
}
