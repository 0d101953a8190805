package flowcatalyst_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
)

func TestConfigValidate(t *testing.T) {
	type config = flowcatalyst.Config
	for name, c := range map[string]struct {
		change func(*config)
		want   string // part of the error; "" for none
	}{
		"defaults":         {func(*config) {}, ""},
		"zero values":      {func(c *config) { *c = config{BaseURL: c.BaseURL} }, ""},
		"path":             {func(c *config) { c.BaseURL = "https://h.example:8443/prefix/" }, ""},
		"no address":       {func(c *config) { c.BaseURL = "" }, "api-base-url is not set"},
		"no scheme":        {func(c *config) { c.BaseURL = "platform.example" }, `api-base-url has scheme ""`},
		"other scheme":     {func(c *config) { c.BaseURL = "ftp://h" }, `api-base-url has scheme "ftp"`},
		"no host":          {func(c *config) { c.BaseURL = "https:///x" }, "api-base-url has no host"},
		"port only":        {func(c *config) { c.BaseURL = "https://:80" }, "api-base-url has no host"},
		"bad port":         {func(c *config) { c.BaseURL = "https://h:x" }, "api-base-url is not a URL: invalid port"},
		"password":         {func(c *config) { c.BaseURL = "https://u:" + canary + "@h" }, "put the token in api-token"},
		"password, broken": {func(c *config) { c.BaseURL = "https://u:p:" + canary + "@h:" + canary }, "api-base-url is not a URL"},
		"query":            {func(c *config) { c.BaseURL = "https://h/?key=" + canary }, "without ? or #"},
		"wire":             {func(c *config) { c.Wire = "objects" }, `wire is "objects", must be array or items`},
		"token newline":    {func(c *config) { c.Token = canary + "\n" }, "api-token contains a space, a line break"},
		"token blank":      {func(c *config) { c.Token = "Bearer " + canary }, "api-token contains a space"},
		"timeout":          {func(c *config) { c.RequestTimeout = -time.Second }, "request-timeout is -1s"},
		"connections":      {func(c *config) { c.MaxConnections = -1 }, "max-connections is -1"},
		"bytes":            {func(c *config) { c.MaxRequestBytes = -1 }, "max-request-bytes is -1"},
		"user agent":       {func(c *config) { c.UserAgent = "a\r\nX: y" }, "user-agent"},
		"no ca file":       {func(c *config) { c.CAFile = "/does/not/exist.pem" }, "ca-file: open /does/not/exist.pem"},
		"ca file empty":    {func(c *config) { c.CAFile = os.DevNull }, "ca-file: " + os.DevNull + " contains no PEM certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := flowcatalyst.DefaultConfig()
			cfg.BaseURL, cfg.Token = "https://platform.example", canary
			c.change(&cfg)
			_, err := flowcatalyst.New(cfg)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got error %v, want %q in it", err, c.want)
			case err != nil && strings.Contains(err.Error(), canary):
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

// TestConfigReportsAll: one check reports every invalid key.
func TestConfigReportsAll(t *testing.T) {
	cfg := flowcatalyst.Config{Wire: "x", HTTP: flowcatalyst.HTTP{RequestTimeout: -1, MaxConnections: -1}}
	err := cfg.Validate()
	for _, key := range []string{"wire", "api-base-url", "request-timeout", "max-connections"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not in %v", key, err)
		}
	}
}

func TestCheckKind(t *testing.T) {
	for _, c := range []struct {
		wire flowcatalyst.Wire
		kind string
		want string
	}{
		{flowcatalyst.WireArray, "EVENT", ""},
		{flowcatalyst.WireArray, "DISPATCH_JOB", ""},
		{flowcatalyst.WireArray, "AUDIT_LOG", "set wire to items"},
		{flowcatalyst.WireItems, "EVENT", ""},
		{flowcatalyst.WireItems, "DISPATCH_JOB", ""},
		{flowcatalyst.WireItems, "AUDIT_LOG", ""},
		{flowcatalyst.WireItems, "event", `"event" has no endpoint`},
		{flowcatalyst.WireItems, "", `"" has no endpoint`},
	} {
		cfg := flowcatalyst.Config{Wire: c.wire}
		err := cfg.CheckKind(c.kind)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("wire %s, kind %s: %v, want %q", c.wire, c.kind, err, c.want)
		}
	}
}

// TestTokenIsNotPrinted: printing a token, a configuration or a sink does not show
// the token.
func TestTokenIsNotPrinted(t *testing.T) {
	cfg := flowcatalyst.DefaultConfig()
	cfg.BaseURL, cfg.Token = "https://platform.example", canary
	s := newSink(t, cfg)
	var out bytes.Buffer
	for _, v := range []any{cfg.Token, &cfg.Token, cfg, &cfg, s, []any{cfg}, struct{ C flowcatalyst.Config }{cfg}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(h).Info("sink", "value", v)
		}
	}

	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}

	out.Write(b)
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary)} {
		if i := strings.Index(out.String(), form); i >= 0 {
			t.Errorf("the token was printed: …%s", out.String()[max(0, i-100):i+len(form)])
		}
	}

	if !strings.Contains(out.String(), "[redacted]") {
		t.Error("Redacted is missing")
	}
	if s := sink.Secret("").String(); s != "" {
		t.Errorf("empty token: got %q", s)
	}
}

// TestTokenIsRead: a token is redacted on output only, and can be parsed.
func TestTokenIsRead(t *testing.T) {
	var cfg flowcatalyst.Config
	if err := json.Unmarshal([]byte(`{"Token":"`+canary+`"}`), &cfg); err != nil {
		t.Fatal(err)
	}
	if string(cfg.Token) != canary {
		t.Error("the token was not read")
	}
}
