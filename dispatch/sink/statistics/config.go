package statistics

import (
	"cmp"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// defaultInterval is the time between two summaries.
const defaultInterval = 10 * time.Second

// maxItems and maxBytes bound a request. Counting takes so little that only the outcomes of its
// rows matter.
const (
	maxItems = 1000
	maxBytes = 64 << 20
)

// Config configures a sink. The zero value of a field stands for its default.
type Config struct {
	// Interval is the time between two summaries in the log. A negative one means none.
	Interval time.Duration `yaml:"summary-interval" doc:"How often the log gets a summary of the counts, if they have changed. Below 0s: never."`

	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, defaultInterval)
	return c
}

// Validate reports every invalid value by its configuration key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.Interval > 0 && c.Interval < time.Second {
		bad.Add("summary-interval", "is %s, must be at least 1s, or below 0s for no summaries", c.Interval)
	}
	c.Check(&bad)
	return bad.Err()
}

// Fields returns the attributes that the sink uses. A row without them counts under "".
func (c *Config) Fields() []sink.Field { return nil }

// Limits returns the Limits of a sink. They are the same for every kind.
func (c *Config) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, Endpoint: "statistics", MaxItems: maxItems, MaxBytes: maxBytes}
}
