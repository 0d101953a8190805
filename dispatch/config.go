package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Config configures the dispatcher of one sink.
type Config struct {
	// APIBatchSize is the maximum number of rows in one request, from one lane or several.
	APIBatchSize int

	// MaxConcurrentGroups is the maximum number of requests in flight.
	MaxConcurrentGroups int

	// RateLimit is the maximum number of requests per second; 0 is no limit. Retries and
	// probes count, pings do not.
	RateLimit float64

	// BufferRows is the maximum number of rows in memory that came from the source, without
	// rows in flight. Capture pauses when the buffers of all sinks are full. The buffer may
	// hold more in three cases:
	//
	//   - up to twice as many rows while lanes are being spilled
	//   - half as many more that were reloaded
	//   - half as many more whose outcome the table refuses; then no row is sent
	BufferRows int

	// BufferBytes is the maximum payload of waiting rows in memory, in bytes. Payloads
	// beyond it are dropped and read again at the claim. Claims and requests may hold as
	// many bytes again. Rows larger than a request's share may hold as many once more, or a
	// single one of any size; see internal/lane.
	BufferBytes int64

	// MaxRetries is the number of retries before a refused row is marked FAILED. An attempt
	// on an unavailable receiver does not count.
	MaxRetries int

	// BackoffInitial is the wait before the first retry of a row. It doubles with each
	// consecutive failure up to BackoffMax. Both are reduced at random by up to a fifth, so
	// that lanes do not retry in step.
	BackoffInitial, BackoffMax time.Duration

	// RetryAfterMax caps the Retry-After of a receiver.
	RetryAfterMax time.Duration

	// ProofWait is how often a refused row counts without proof that the receiver works. A
	// row that goes unanswered for as long, while other rows are accepted, stalls its lane.
	ProofWait time.Duration

	// GiveUpAfter is how long a row may fail, for any reason, before it is marked FAILED.
	// It applies even to rows that only went unanswered, with or without proof. 0 means no
	// limit.
	GiveUpAfter time.Duration

	// OnFailed controls a lane after a FAILED row.
	OnFailed OnFailed

	// Ungrouped controls the order of rows without a group.
	Ungrouped Ungrouped

	// Compat counts failures like another processor; "" is the proof rule.
	Compat Compat

	// TakeoverWait is the pause between the start of Run and the first claim.
	TakeoverWait time.Duration
}

// minRate is the least rate limit, in requests per second.
const minRate = 1.0 / 3600

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
	CompatNone Compat = ""

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
		BackoffInitial:      200 * time.Millisecond,
		BackoffMax:          30 * time.Second,
		RetryAfterMax:       5 * time.Minute,
		ProofWait:           5 * time.Minute,
		OnFailed:            Continue,
		Ungrouped:           FIFO,
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
		bad.Add("rate-limit", "is %.3g/s, must be at least one request an hour, or 0/s for no limit", c.RateLimit)
	}
	if c.BackoffInitial <= 0 {
		bad.Add("backoff.initial", "is %s, must be above 0", c.BackoffInitial)
	}
	if c.BackoffMax < c.BackoffInitial {
		bad.Add("backoff.max", "is %s, must not be below backoff.initial (%s)", c.BackoffMax, c.BackoffInitial)
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
	oneOf(&bad, "retry.compat", c.Compat, CompatNone, CompatFlowCatalyst, CompatPostbox)
	return bad.Err()
}

func oneOf[T ~string](bad *store.FieldErrors, key string, v T, choices ...T) {
	if !slices.Contains(choices, v) {
		bad.Add(key, "is %q, must be one of %q", v, choices)
	}
}
