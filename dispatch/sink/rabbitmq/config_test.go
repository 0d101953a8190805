package rabbitmq_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/rabbitmq"
)

func TestValidate(t *testing.T) {
	header := func(name string) func(*rabbitmq.Config) {
		return func(c *rabbitmq.Config) { c.Headers = map[string]sink.Secret{name: "x"} }
	}
	for name, c := range map[string]struct {
		change func(*rabbitmq.Config)
		want   string // "" is valid
	}{
		"valid":            {func(*rabbitmq.Config) {}, ""},
		"virtual host":     {func(c *rabbitmq.Config) { c.URL = "amqps://u:p%40@a:5671/%2Fshop" }, ""},
		"default exchange": {func(c *rabbitmq.Config) { c.Exchange = "" }, ""},
		"fanout":           {func(c *rabbitmq.Config) { c.RoutingKey = "" }, ""},
		"no destination":   {func(c *rabbitmq.Config) { c.Exchange, c.RoutingKey = "", "" }, "routing-key is not set"},
		"no address":       {func(c *rabbitmq.Config) { c.URL = "" }, "url is not set"},
		"scheme":           {func(c *rabbitmq.Config) { c.URL = "http://a" }, `url has the scheme "http"`},
		"no host":          {func(c *rabbitmq.Config) { c.URL = "amqp://u:" + canary + "@" }, "url is no address"},
		"open password":    {func(c *rabbitmq.Config) { c.URL = "amqp://u:%zz" + canary + "@a" }, "url is no address"},
		"parameters":       {func(c *rabbitmq.Config) { c.URL += "?heartbeat=0" }, "url has parameters"},
		"no TLS":           {func(c *rabbitmq.Config) { c.CAFile = "ca" }, "url has the scheme amqp, which has no TLS"},
		"long exchange":    {func(c *rabbitmq.Config) { c.Exchange = strings.Repeat("x", 256) }, "exchange has 256 bytes"},
		"field":            {func(c *rabbitmq.Config) { c.RoutingKey = "a.{grp}" }, "routing-key has {grp}"},
		"certificate":      {func(c *rabbitmq.Config) { c.CertFile = "c" }, "key-file is not set"},
		"instruction":      {header("BCC"), "headers.BCC cannot be set"},
		"no source":        {func(c *rabbitmq.Config) { c.Format = "cloudevents" }, "cloudevents-source is not set"},
		"negative timeout": {func(c *rabbitmq.Config) { c.RequestTimeout = -1 }, "request-timeout is"},
	} {
		config := rabbitmq.DefaultConfig()
		config.URL, config.Exchange, config.RoutingKey = "amqp://127.0.0.1:1", "events", "a.{group}"
		c.change(&config)
		err := config.Validate()
		switch {
		case err == nil && c.want != "":
			t.Errorf("%s: valid, want %q", name, c.want)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), canary)):
			t.Errorf("%s: got %q, want %q", name, err, c.want)
		}
	}
}

// A file that is missing or invalid is an error of its own, because it may be repaired later.
func TestFiles(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, change := range map[string]func(*rabbitmq.Config){
		"ca-file":   func(c *rabbitmq.Config) { c.CAFile = "missing" },
		"cert-file": func(c *rabbitmq.Config) { c.CertFile, c.KeyFile = text, text },
	} {
		c := rabbitmq.DefaultConfig()
		c.URL, c.RoutingKey = "amqps://127.0.0.1:1", "a"
		change(&c)
		_, err := rabbitmq.New(c)
		if file := (*sink.FileError)(nil); !errors.As(err, &file) || file.Key != key {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
