package dispatch

import (
	"errors"
	"fmt"
	"time"
)

// Config is the dispatcher of one sink.
type Config struct {
	// APIBatchSize is the most rows in one request.
	APIBatchSize int
	// MaxConcurrentGroups is the most requests in flight at once.
	MaxConcurrentGroups int
	// BufferRows is the most rows in memory; capture pauses there.
	BufferRows int
	// BufferBytes is the most payload bytes in memory; capture pauses there.
	BufferBytes int64
	// MaxRetries are the counted attempts after the first; then a row FAILED.
	MaxRetries int
	// BackoffInitial is the wait before the first retry of a row. It doubles
	// with each failure in a row up to BackoffMax. Both are shortened at random
	// by up to a fifth, so that lanes do not knock in step.
	BackoffInitial, BackoffMax time.Duration
	// RetryAfterMax caps the wait that a receiver may ask for.
	RetryAfterMax time.Duration
	// ProofWait is how often a refused row counts without proof that the
	// receiver lives.
	ProofWait time.Duration
}

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
	return errors.Join(errs...)
}
