package nats_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
)

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nats.Config)
		want   string // "" is valid
	}{
		"valid":            {func(*nats.Config) {}, ""},
		"several servers":  {func(c *nats.Config) { c.URL = "nats://a, tls://b:4222" }, ""},
		"no address":       {func(c *nats.Config) { c.URL = "" }, "url is not set"},
		"scheme":           {func(c *nats.Config) { c.URL = "http://a" }, `url has server 1 with the scheme "http", must be nats or tls`},
		"no scheme":        {func(c *nats.Config) { c.URL = "nats://a,b:4222" }, "url has server 2"},
		"password":         {func(c *nats.Config) { c.URL = "nats://u:" + canary + "@a" }, "url has server 1 with a user"},
		"path":             {func(c *nats.Config) { c.URL = "nats://a/b" }, "url has server 1 with a text behind the port"},
		"no subject":       {func(c *nats.Config) { c.Subject = "" }, "subject is not set"},
		"blank":            {func(c *nats.Config) { c.Subject = "a b" }, "subject is \"a b\""},
		"wildcard":         {func(c *nats.Config) { c.Subject = "a.>" }, "subject is \"a.>\""},
		"empty token":      {func(c *nats.Config) { c.Subject = "a..{id}" }, "subject is \"a..{id}\", which has an empty token"},
		"dot at the end":   {func(c *nats.Config) { c.Subject = "a." }, "subject is \"a.\", which has an empty token"},
		"of the server":    {func(c *nats.Config) { c.Subject = "$JS.API.{id}" }, "subject is \"$JS.API.{id}\", which belongs to the server"},
		"of a bucket":      {func(c *nats.Config) { c.Subject = "$KV.b.{id}" }, ""},
		"field":            {func(c *nats.Config) { c.Subject = "a.{grp}" }, "subject has {grp}"},
		"stream":           {func(c *nats.Config) { c.Stream = "a.b" }, "stream is \"a.b\""},
		"batch":            {func(c *nats.Config) { c.Batch = "all" }, "batch is \"all\", must be none or atomic"},
		"two credentials":  {func(c *nats.Config) { c.User, c.Token = "u", canary }, "token is set beside user"},
		"password alone":   {func(c *nats.Config) { c.Password = canary }, "user is not set; password needs it"},
		"certificate":      {func(c *nats.Config) { c.CertFile = "c" }, "key-file is not set"},
		"server's header":  {func(c *nats.Config) { c.Headers = map[string]sink.Secret{"nats-rollup": "all"} }, "headers.nats-rollup cannot be set"},
		"format":           {func(c *nats.Config) { c.Format = "x" }, "format is \"x\""},
		"no source":        {func(c *nats.Config) { c.Format = "cloudevents" }, "cloudevents-source is not set"},
		"negative timeout": {func(c *nats.Config) { c.RequestTimeout = -1 }, "request-timeout is"},
	} {
		config := nats.DefaultConfig()
		config.URL, config.Subject = "nats://127.0.0.1:1", "a.{group}"
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
	for key, change := range map[string]func(*nats.Config){
		"creds-file": func(c *nats.Config) { c.CredsFile = "missing" },
		"nkey-file":  func(c *nats.Config) { c.NKeyFile = text },
		"ca-file":    func(c *nats.Config) { c.CAFile = text },
		"cert-file":  func(c *nats.Config) { c.CertFile, c.KeyFile = text, text },
	} {
		c := nats.DefaultConfig()
		c.URL, c.Subject = "nats://127.0.0.1:1", "a"
		change(&c)
		_, err := nats.New(c)
		if file := (*sink.FileError)(nil); !errors.As(err, &file) || file.Key != key {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
