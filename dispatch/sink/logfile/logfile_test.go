package logfile_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/logfile"
	"github.com/sluicebox/sluicebox/store"
)

func content(tb testing.TB, path string) string {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// TestLines: the line of a row in each format, byte for byte.
func TestLines(t *testing.T) {
	row := sink.Message{
		ID: "7", Kind: "order", Group: store.GroupOf(""), Payload: []byte("{\n  \"n\": 12345678901234567890, \"s\": \"<é>\"\n}\n"), Committed: time.Unix(1, 0),
		Attributes: store.Attributes{{Name: "type", Value: "Paid"}, {Name: "tenant", Value: "t"}},
	}
	change := func(f func(*sink.Message)) sink.Message {
		m := row
		f(&m)
		return m
	}
	headers := map[string]sink.Secret{"x-tenant": "{attr.tenant}", "none": "{attr.none}"}
	const data = `{"n":12345678901234567890,"s":"<é>"}`
	text := event.Settings{ContentType: "text/plain"}
	for name, c := range map[string]struct {
		format   logfile.Format
		settings event.Settings
		m        sink.Message
		want     string
		rejected string
	}{
		"row":         {"", event.Settings{IDPrefix: "p-", Headers: headers}, row, `{"id":"p-7","kind":"order","type":"Paid","group":"","time":"1970-01-01T00:00:01Z","headers":{"x-tenant":"t"},"data":` + data + "}\n", ""},
		"bare row":    {"", event.Settings{}, sink.Message{ID: "7", Replay: "r"}, `{"id":"7","replay":"r"}` + "\n", ""},
		"text":        {"", text, sink.Message{ID: "7", Payload: []byte("a\n<b>")}, `{"id":"7","data":"a\n<b>"}` + "\n", ""},
		"binary":      {"", event.Settings{}, sink.Message{ID: "7", Payload: []byte("\x00\xff")}, `{"id":"7","data_base64":"AP8="}` + "\n", ""},
		"no JSON":     {"", event.Settings{}, sink.Message{ID: "7", Payload: []byte("x")}, "", "payload is not JSON, as its content-type application/json says"},
		"raw":         {logfile.FormatRaw, event.Settings{}, row, data + "\n", ""},
		"raw text":    {logfile.FormatRaw, text, change(func(m *sink.Message) { m.Payload = []byte("a b") }), "a b\n", ""},
		"raw, lines":  {logfile.FormatRaw, text, row, "", "payload has a line break; use format: row"},
		"raw, empty":  {logfile.FormatRaw, event.Settings{}, sink.Message{ID: "7"}, "", "payload is empty and not JSON"},
		"event":       {logfile.FormatStructured, event.Settings{CloudEventsSource: "/s", Headers: map[string]sink.Secret{"ce-tenant": "{attr.tenant}"}}, change(func(m *sink.Message) { m.Group = store.GroupOf("g") }), `{"datacontenttype":"application/json","id":"7","partitionkey":"g","source":"/s","specversion":"1.0","subject":"g","tenant":"t","time":"1970-01-01T00:00:01Z","type":"Paid","data":` + data + "}\n", ""},
		"event, text": {logfile.FormatStructured, event.Settings{CloudEventsSource: "/s"}, sink.Message{ID: "7", Kind: "k", Payload: []byte("x")}, "", "payload is not JSON"},
	} {
		cfg := to(filepath.Join(t.TempDir(), "f"))
		cfg.Format, cfg.Settings = c.format, c.settings
		s := newSink(t, cfg)
		ok := sink.Message{ID: "1", Kind: "k", Payload: []byte("1")}
		deliver(t, s, ok)
		before := content(t, cfg.Output)
		res := deliver(t, s, ok, c.m, ok)
		if c.rejected != "" {
			if res.At(0).Class != sink.Delivered || res.At(1).Class != sink.Rejected || res.At(2).Class != sink.NotSent || !strings.Contains(res.At(1).Detail, c.rejected) {
				t.Errorf("%s: %+v", name, res)
			}
			if got := content(t, cfg.Output); got != before+before {
				t.Errorf("%s: the file is %q", name, got)
			}
			if res := deliver(t, s, c.m, ok); res.At(0).Class != sink.Rejected || res.At(1).Class != sink.NotSent || !res.Unsent {
				t.Errorf("%s, at the head: %+v", name, res)
			}
			continue
		}
		if got := content(t, cfg.Output); got != before+before+c.want+before {
			t.Errorf("%s: the file is\n%s, want\n%s", name, got, before+before+c.want+before)
		}
	}
}

// A file that was renamed or removed is created again, and a line without an end gets one.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(`{"id":"cut`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSink(t, to(path))
	deliver(t, s, sink.Message{ID: "1"})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	deliver(t, s, sink.Message{ID: "2"})
	deliver(t, s, sink.Message{ID: "3"})
	if got := content(t, path+".1"); got != "{\"id\":\"cut\n{\"id\":\"1\"}\n" {
		t.Errorf("the first file is %q", got)
	}
	if got := content(t, path); got != "{\"id\":\"2\"}\n{\"id\":\"3\"}\n" {
		t.Errorf("the second file is %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if out := s.Probe(t.Context(), ""); out.Class != sink.Delivered || content(t, path) != "" {
		t.Errorf("a probe: %+v, the file is %q", out, content(t, path))
	}
}

// Lines that fit before a limit are delivered, the line at the limit is not, and the next one
// begins on a line of its own.
func TestCutOffLine(t *testing.T) {
	const line = `{"id":"1"}` + "\n"
	path := filepath.Join(t.TempDir(), "f")
	s := newSink(t, to(path))
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := before
	limit.Cur = uint64(2*len(line) + 4)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	ids := []sink.Message{{ID: "1"}, {ID: "2"}, {ID: "3"}, {ID: "4"}}
	res := s.Deliver(t.Context(), ids)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	for i, want := range []sink.Class{sink.Delivered, sink.Delivered, sink.Unavailable, sink.NotSent} {
		if got := res.At(i); got.Class != want {
			t.Errorf("row %d is %s, want %s: %s", i+1, got.Class, want, got.Detail)
		}
	}
	deliver(t, s, ids[2:]...)
	if got, want := content(t, path), line+`{"id":"2"}`+"\n"+`{"id`+"\n"+`{"id":"3"}`+"\n"+`{"id":"4"}`+"\n"; got != want {
		t.Errorf("the file is\n%s, want\n%s", got, want)
	}
}

func TestConfig(t *testing.T) {
	if s, err := logfile.New(logfile.Config{}); err != nil {
		t.Error(err)
	} else if limits := s.Limits(""); limits.Endpoint != "stdout" || limits.Mode != sink.Ordered {
		t.Errorf("the limits are %+v", limits)
	}
	header := func(name string) func(*logfile.Config) {
		return func(c *logfile.Config) { c.Headers = map[string]sink.Secret{name: "canary"} }
	}
	for name, c := range map[string]struct {
		change func(*logfile.Config)
		want   string
	}{
		"fsync":        {func(c *logfile.Config) { c.Output, c.Fsync = "stderr", true }, "fsync is only for a file; set output to a path"},
		"NUL":          {func(c *logfile.Config) { c.Output = "a\x00" }, "output contains a NUL"},
		"format":       {func(c *logfile.Config) { c.Format = "cloudevents" }, `format is "cloudevents", must be one of ["row" "raw" "cloudevents-structured"]`},
		"no source":    {func(c *logfile.Config) { c.Format = logfile.FormatStructured }, "cloudevents-source is not set"},
		"raw header":   {func(c *logfile.Config) { header("x-a")(c); c.Format = logfile.FormatRaw }, "headers.x-a is only for format: row"},
		"bad header":   {header("a b"), "headers has the invalid name"},
		"request time": {func(c *logfile.Config) { c.RequestTimeout = -1 }, "request-timeout is"},
		"error detail": {func(c *logfile.Config) { c.ErrorDetail = "x" }, "error-detail is"},
	} {
		cfg := logfile.DefaultConfig()
		c.change(&cfg)
		if _, err := logfile.New(cfg); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	cfg := logfile.DefaultConfig()
	cfg.Headers = map[string]sink.Secret{"a": "{attr.x}"}
	if got := cfg.Fields(); !reflect.DeepEqual(got, []sink.Field{{Key: "headers.a", Attribute: "x"}}) {
		t.Errorf("the fields are %v", got)
	}
}

// A request that ended before it began writes nothing.
func TestCancelled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	s := newSink(t, to(path))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res := s.Deliver(ctx, []sink.Message{{ID: "1"}}); res.Class != sink.Unavailable || !strings.Contains(res.Detail, "write canceled: context canceled") {
		t.Errorf("%+v", res)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is there")
	}
}
