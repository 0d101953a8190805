package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config is the dispatcher of one sink.
type Config struct {
	// APIBatchSize is the most rows in one request, of one lane or several.
	APIBatchSize int
	// MaxConcurrentGroups is the most requests in flight at once.
	MaxConcurrentGroups int
	// BufferRows is the most rows in memory that came from the source, but for
	// those in flight; up to twice as many while lanes are being parked. Half as
	// many more may be rows that were parked and read back, and half as many rows
	// whose outcome their table refuses, before nothing more is sent. Capture pauses
	// when the buffers of all sinks are full.
	BufferRows int
	// BufferBytes is the most payload bytes in memory of rows that wait; past it
	// payloads are dropped, and read again when the row is claimed. Payloads in claims
	// and requests have as many bytes again, and so have rows that are larger than a
	// request's share of them, or there is one of these; see large.go.
	BufferBytes int64
	// MaxRetries is the number of retries before a refused row is FAILED. An attempt
	// that the receiver was unavailable for uses none up.
	MaxRetries int
	// BackoffInitial is the wait before the first retry of a row. It doubles
	// with each failure in a row up to BackoffMax. Both are shortened at random
	// by up to a fifth, so that lanes do not knock in step.
	BackoffInitial, BackoffMax time.Duration
	// RetryAfterMax caps the wait that a receiver may ask for.
	RetryAfterMax time.Duration
	// ProofWait is how often a refused row counts without proof that the
	// receiver lives, and how long a row may be left unanswered beside others that
	// are taken before its lane is stalled.
	ProofWait time.Duration
	// GiveUpAfter is how long a row may fail, whatever the reason, before it is
	// FAILED: also a row that was only left unanswered, with proof or without. 0 is
	// for ever.
	GiveUpAfter time.Duration
	// OnFailed says what becomes of a lane whose row FAILED.
	OnFailed OnFailed
	// Ungrouped says how rows without a group are ordered.
	Ungrouped Ungrouped
	// Compat counts failures as another processor does; "" is the proof rule.
	Compat Compat
	// TakeoverWait is the pause between the start of Run and the first claim.
	TakeoverWait time.Duration
}

// claimAhead is how many requests are claimed before a sender is free for them. With one
// row a request and a receiver that takes 20 ms, 64 senders have 3 answers in a
// millisecond, and a claim takes some milliseconds.
func (c *Config) claimAhead() int { return (c.MaxConcurrentGroups + 3) / 4 }

// OnFailed says what becomes of a lane whose row FAILED.
type OnFailed string

// The choices of OnFailed.
const (
	// Continue: the next row is sent.
	Continue OnFailed = "continue"
	// Block: the lane stays blocked until somebody skips or requeues the row.
	Block OnFailed = "block"
)

// Ungrouped says how rows without a group are ordered.
type Ungrouped string

// The choices of Ungrouped.
const (
	// FIFO: they share one lane for each outbox and kind.
	FIFO Ungrouped = "fifo"
	// Parallel: each has a lane of its own.
	Parallel Ungrouped = "parallel"
)

// Compat counts failures as another processor does, for teams that rely on it.
type Compat string

// The choices of Compat.
const (
	// CompatNone is the proof rule.
	CompatNone Compat = ""
	// CompatFlowCatalyst counts every failure, whoever is to blame: an outage of
	// the receiver makes dead letters.
	CompatFlowCatalyst Compat = "flowcatalyst"
	// CompatPostbox counts every 4xx and nothing else: a row that the receiver
	// breaks on is tried for ever.
	CompatPostbox Compat = "postbox"
)

// DefaultConfig returns the defaults that the README lists.
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

// Validate reports every value that is out of range, by its configuration key.
func (c *Config) Validate() error {
	var errs []error
	atLeast := func(key string, v, least int64) {
		if v < least {
			errs = append(errs, fmt.Errorf("%s is %d, must be at least %d", key, v, least))
		}
	}
	atLeast("api-batch-size", int64(c.APIBatchSize), 1)
	atLeast("max-concurrent-groups", int64(c.MaxConcurrentGroups), 1)
	atLeast("global-buffer-size", int64(c.BufferRows), 1)
	atLeast("buffer-bytes", c.BufferBytes, 1)
	atLeast("max-retries", int64(c.MaxRetries), 0)
	if c.BackoffInitial <= 0 {
		errs = append(errs, fmt.Errorf("backoff.initial is %s, must be above 0", c.BackoffInitial))
	}
	if c.BackoffMax < c.BackoffInitial {
		errs = append(errs, fmt.Errorf("backoff.max is %s, must not be below backoff.initial (%s)", c.BackoffMax, c.BackoffInitial))
	}
	if c.ProofWait <= 0 {
		errs = append(errs, fmt.Errorf("proof-wait is %s, must be above 0", c.ProofWait))
	}
	if c.RetryAfterMax <= 0 {
		errs = append(errs, fmt.Errorf("retry-after-max is %s, must be above 0", c.RetryAfterMax))
	}
	if c.GiveUpAfter < 0 {
		errs = append(errs, fmt.Errorf("give-up-after is %s, must not be negative", c.GiveUpAfter))
	}
	if c.TakeoverWait < 0 {
		errs = append(errs, fmt.Errorf("takeover-wait is %s, must not be negative", c.TakeoverWait))
	}
	oneOf(&errs, "on-failed", c.OnFailed, Continue, Block)
	oneOf(&errs, "ungrouped", c.Ungrouped, FIFO, Parallel)
	oneOf(&errs, "retry.compat", c.Compat, CompatNone, CompatFlowCatalyst, CompatPostbox)
	return errors.Join(errs...)
}

func oneOf[T ~string](errs *[]error, key string, v T, choices ...T) {
	if !slices.Contains(choices, v) {
		*errs = append(*errs, fmt.Errorf("%s is %q, must be one of %q", key, v, choices))
	}
}
