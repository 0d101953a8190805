package notices

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// Rules say when conditions are raised and cleared. The tags are the keys of the configuration file.
type Rules struct {
	RaiseAfter time.Duration `yaml:"raise-after" doc:"How long a condition must hold until it is raised."`
	ClearAfter time.Duration `yaml:"clear-after" doc:"How long it must not hold until it is cleared. For FAILED rows: the time without another one."`
	Interval   time.Duration `yaml:"interval" doc:"FAILED rows: the least time between two notices of a sink."`

	RetainedPercent int `yaml:"retained-percent" doc:"The retained log, in percent of its limit, from which it is at risk. 0: no such notice."`

	LeaderChanges int           `yaml:"leader-changes" doc:"How many changes of this relay between leader and standby within leader-window are too many. 0: no such notice."`
	LeaderWindow  time.Duration `yaml:"leader-window" doc:"The window of leader-changes."`

	MaxAge time.Duration `yaml:"max-age" doc:"The age of the oldest row in memory from which rows are late. 0s: no such notice."`
}

// Config is the section notices.
type Config struct {
	Rules   `yaml:",inline"`
	Webhook *Webhook `yaml:"webhook" doc:"Gets each notice as the body of a POST."`
	Command *Command `yaml:"command" doc:"Gets each notice on its standard input."`
}

// Webhook is the section notices.webhook.
type Webhook struct {
	URL     sink.Secret   `yaml:"url" doc:"Required. The address: https://host[:port]/path. It is treated as a secret, because it may contain a key." placeholder:"https://xxxxx"`
	Secrets []sink.Secret `yaml:"secrets" doc:"Keys that sign each request per the Standard Webhooks spec: whsec_ and base64, as those of a webhook sink." placeholder:"whsec_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`
	Token   sink.Secret   `yaml:"token" doc:"Bearer token. Prefer a reference: ${file:/run/secrets/token} or ${env:NAME}."`
	CAFile  string        `yaml:"ca-file" doc:"PEM file of the CA certificates to trust, instead of the system's."`
	Timeout time.Duration `yaml:"timeout" doc:"The timeout of an attempt. Failed ones are repeated for some minutes. Default: 10s."`
}

// Command is the section notices.command.
type Command struct {
	Argv    []string      `yaml:"argv" doc:"Required. The program and its arguments. No shell reads them."`
	Timeout time.Duration `yaml:"timeout" doc:"The time after which the program is killed. Default: 10s."`
}

// defaultTimeout is the timeout of an attempt and of a command.
const defaultTimeout = 10 * time.Second

// DefaultConfig returns a section with default values.
func DefaultConfig() Config {
	return Config{Rules: Rules{
		RaiseAfter: 30 * time.Second, ClearAfter: time.Minute, Interval: time.Minute,
		RetainedPercent: 80, LeaderChanges: 4, LeaderWindow: 15 * time.Minute, MaxAge: 5 * time.Minute,
	}}
}

// Validate reports every invalid value by its key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	for _, d := range []struct {
		key  string
		of   time.Duration
		zero bool
	}{
		{"raise-after", c.RaiseAfter, true},
		{"clear-after", c.ClearAfter, true},
		{"interval", c.Interval, true},
		{"leader-window", c.LeaderWindow, c.LeaderChanges == 0},
		{"max-age", c.MaxAge, true},
	} {
		if d.of < 0 || d.of == 0 && !d.zero {
			bad.Add(d.key, "is %s, must be above 0s", d.of)
		}
	}
	if c.RetainedPercent < 0 || c.RetainedPercent > 100 {
		bad.Add("retained-percent", "is %d, must be 1 to 100, or 0 for no notice", c.RetainedPercent)
	}
	if c.LeaderChanges < 0 {
		bad.Add("leader-changes", "is %d, must be 1 or more, or 0 for no notice", c.LeaderChanges)
	}
	if c.Webhook == nil && c.Command == nil {
		bad.Add("webhook", "is required without command; write webhook: {url: …} or command: {argv: […]}")
	}
	if w := c.Webhook; w != nil {
		w.validate(&bad)
	}
	if k := c.Command; k != nil {
		if len(k.Argv) == 0 || k.Argv[0] == "" {
			bad.Add("command.argv", "is required; write [program, argument, …]")
		}
		if k.Timeout < 0 {
			bad.Add("command.timeout", "is %s, must be above 0s", k.Timeout)
		}
	}
	return bad.Err()
}

// validate checks the webhook with the rules of a webhook sink.
func (w *Webhook) validate(bad *store.FieldErrors) {
	if w.Timeout < 0 {
		bad.Add("webhook.timeout", "is %s, must be above 0s", w.Timeout)
	}
	for _, f := range store.FieldErrorsOf(w.check()) {
		bad.Add("webhook."+f.Key, "%s", f.Text)
	}
}

// check returns the errors of the webhook sink.
func (w *Webhook) check() error {
	if w.URL == "" {
		return &store.FieldError{Key: "url", Text: "is required; write https://host[:port]/path"}
	}
	c := w.sink()
	if len(c.Fields()) > 0 {
		return &store.FieldError{Key: "url", Text: "has a field of a row, and a notice is no row; write {{ and }} for braces"}
	}
	return c.Validate()
}

// sink returns the configuration of the webhook as a sink.
func (w *Webhook) sink() webhook.Config {
	c := webhook.DefaultConfig()
	c.URL, c.Secrets = w.URL, w.Secrets
	c.Token, c.CAFile, c.RequestTimeout = w.Token, w.CAFile, timeout(w.Timeout)
	return c
}

func timeout(t time.Duration) time.Duration {
	if t == 0 {
		return defaultTimeout
	}
	return t
}
