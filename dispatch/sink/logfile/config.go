package logfile

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/store"
)

// Format is what a line has.
type Format string

// Formats of a line.
const (
	// FormatRow: a JSON object with the payload as its data, and the id, the kind, the type, the
	// group and the time of the row.
	FormatRow Format = "row"

	// FormatRaw: the payload. Line breaks between the parts of a JSON payload are removed.
	FormatRaw Format = "raw"

	// FormatStructured: a CloudEvent in JSON.
	FormatStructured Format = "cloudevents-structured"
)

// Values of Output that are no file.
const (
	OutputStdout = "stdout"
	OutputStderr = "stderr"
)

// A request has at most so many rows and, if there are several, so many bytes of payload.
const (
	maxItems = 1000
	maxBytes = 1 << 20
)

// Config configures a sink. The zero value of a field stands for its default.
type Config struct {
	// Output is OutputStdout, the default, OutputStderr, or the path of a file.
	Output string `yaml:"output" doc:"stdout, stderr, or the path of the file to which lines are appended. A file that was renamed or removed is created again."`

	// Fsync waits for the disk before rows count as delivered.
	Fsync bool `yaml:"fsync" doc:"Whether to wait until the disk has a row before it counts as delivered. Only for a file."`

	// Format is what a line has. The default is FormatRow. It stands for that of Settings.
	Format Format `yaml:"format" doc:"row: a line is a JSON object with the payload as its data, and the id, kind, type, group and time of the row. raw: a line is the payload. cloudevents-structured: a line is a CloudEvent in JSON." enum:"row,raw,cloudevents-structured"`

	event.Settings  `yaml:",inline"`
	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Output = cmp.Or(c.Output, OutputStdout)
	c.Format = cmp.Or(c.Format, FormatRow)
	c.ContentType = cmp.Or(c.ContentType, event.DefaultSettings().ContentType)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 30*time.Second)
	return c
}

// settings returns what is sent, in the formats of package event.
func (c *Config) settings() event.Settings {
	s := c.Settings
	s.Format = event.FormatRaw
	if c.Format == FormatStructured {
		s.Format = event.FormatStructured
	}
	return s
}

// isFile reports whether the output is a file.
func (c *Config) isFile() bool {
	return c.Output != "" && c.Output != OutputStdout && c.Output != OutputStderr
}

// Validate reports every invalid value by its configuration key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if strings.ContainsRune(c.Output, 0) {
		bad.Add("output", "contains a NUL character")
	}
	if c.Fsync && !c.isFile() {
		bad.Add("fsync", "is only for a file; set output to a path")
	}
	if formats := []Format{FormatRow, FormatRaw, FormatStructured}; c.Format != "" && !slices.Contains(formats, c.Format) {
		bad.Add("format", "is %q, must be one of %q", string(c.Format), formats)
	}
	s := c.settings()
	s.Check(&bad)
	for name := range c.Headers {
		if _, extension := event.Extension(name); !extension && (c.Format == FormatRaw || c.Format == FormatStructured) {
			bad.Add("headers."+name, "is only for format: %s; a line has no other place for it", FormatRow)
		}
	}
	if c.RequestTimeout < 0 {
		bad.Add("request-timeout", "is %s, must be above 0", c.RequestTimeout)
	}
	bad.AddErr(c.ErrorDetail.Check())
	return bad.Err()
}

// Fields returns the attributes and the group that a valid configuration writes, by key.
func (c *Config) Fields() []sink.Field { return c.Settings.Fields() }

// Limits returns the Limits of a sink with this configuration. They are the same for every kind.
func (c *Config) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Ordered, Endpoint: c.name(), MaxItems: maxItems, MaxBytes: maxBytes}
}

// name returns the output for operators.
func (c *Config) name() string {
	if !c.isFile() {
		return cmp.Or(c.Output, OutputStdout)
	}
	return filepath.Clean(c.Output)
}
