package redis_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/redis"
	"github.com/sluicebox/sluicebox/store"
)

// attributes returns one attribute.
func attributes(name, value string) store.Attributes {
	return store.Attributes{{Name: name, Value: value}}
}

func TestConfig(t *testing.T) {
	url := func(u string) func(*redis.Config) { return func(c *redis.Config) { c.URL = sink.Secret(u) } }
	for name, c := range map[string]struct {
		change func(*redis.Config)
		want   string // "" for none
	}{
		"valid":          {func(*redis.Config) {}, ""},
		"database":       {url("rediss://h:1/3"), ""},
		"template":       {func(c *redis.Config) { c.Stream = "a.{kind}" }, ""},
		"no url":         {url(""), "url is not set; set it to the address of the server"},
		"no host":        {url("redis:///1"), "url is no address such as"},
		"scheme":         {url("http://" + canary), `url has the scheme "http", must be redis or rediss`},
		"password":       {url("redis://u:" + canary + "@h"), "url has a user or a password; put them in user and password"},
		"query":          {url("redis://h?" + canary), "url must end with the database"},
		"database name":  {url("redis://h/" + canary), "url has a database that is no number"},
		"no stream":      {func(c *redis.Config) { c.Stream = "" }, "stream is not set; set it to the name"},
		"unknown field":  {func(c *redis.Config) { c.Stream = "a.{kynd}" }, "stream has {kynd} at character 3, did you mean {kind}?"},
		"stream name":    {func(c *redis.Config) { c.Stream = "a\nb" }, "stream is invalid: name of the stream has a control character"},
		"length":         {func(c *redis.Config) { c.MaxLength = -1 }, "max-length is -1"},
		"no password":    {func(c *redis.Config) { c.User = "u" }, "password is not set; user needs it"},
		"no certificate": {func(c *redis.Config) { c.KeyFile = "k" }, "cert-file is not set; key-file needs it"},
		"format":         {func(c *redis.Config) { c.Format = "xml" }, "format is"},
		"field":          {func(c *redis.Config) { c.Headers = map[string]sink.Secret{"data": canary} }, "headers.data cannot be set: the relay sets the fields id and data"},
		"no CA":          {func(c *redis.Config) { c.URL, c.CAFile = "rediss://h", "/does/not/exist" }, "ca-file: open /does/not/exist"},
	} {
		cfg := redis.DefaultConfig()
		cfg.URL, cfg.Stream = "redis://h", "orders"
		c.change(&cfg)
		s, err := redis.New(cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case err != nil && strings.Contains(err.Error(), canary):
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
		if err == nil {
			s.Close()
		}
	}
	cfg := redis.Config{Stream: "a.{type}"}
	if got := cfg.Fields(); !reflect.DeepEqual(got, []sink.Field{{Key: "stream", Attribute: "type", Required: true}}) {
		t.Errorf("the fields are %v", got)
	}
}
