package camunda_test

import (
	"bytes"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// What a real engine answers. It is fetched by its name only:
//
//	store/storetest/servers/servers.sh exec zeebe -- go test -v -run TestEngine ./dispatch/sink/camunda
func TestEngine(t *testing.T) {
	engine := servers.Zeebe(t)
	large := func(bytesOf int) []byte { return []byte(`{"a":"` + string(bytes.Repeat([]byte("x"), bytesOf)) + `"}`) }
	for name, tt := range map[string]struct {
		change func(c *camunda.Config, m *sink.Message)
		want   sink.Class
	}{
		"a message":          {func(*camunda.Config, *sink.Message) {}, sink.Delivered},
		"no group":           {func(_ *camunda.Config, m *sink.Message) { m.Group = store.Group{} }, sink.Delivered},
		"no payload":         {func(_ *camunda.Config, m *sink.Message) { m.Payload = nil }, sink.Delivered},
		"a long id":          {func(_ *camunda.Config, m *sink.Message) { m.ID = string(bytes.Repeat([]byte("x"), 1000)) }, sink.Delivered},
		"4 MB":               {func(_ *camunda.Config, m *sink.Message) { m.Payload = large(3_900_000) }, sink.Delivered},
		"almost 4 MiB":       {func(_ *camunda.Config, m *sink.Message) { m.Payload = large(4<<20 - 200) }, sink.Refused},
		"5 MB":               {func(c *camunda.Config, m *sink.Message) { c.MaxRequestBytes, m.Payload = 8<<20, large(5_000_000) }, sink.Rejected},
		"a number too large": {func(_ *camunda.Config, m *sink.Message) { m.Payload = []byte(`{"a":12345678901234567890123}`) }, sink.Refused},
	} {
		cfg, m := config(engine.URL), row(name)
		cfg.Receipts = true
		tt.change(&cfg, &m)
		s := newSink(t, cfg)
		res := s.Deliver(t.Context(), []sink.Message{m})
		if res.Class != tt.want || (len(res.Receipt) == 1) != (tt.want == sink.Delivered) {
			t.Errorf("%s: %+v, want %s", name, res, tt.want)
		}
		if again := s.Deliver(t.Context(), []sink.Message{m}); again.Class != tt.want || (again.Skipped == 1) != (tt.want == sink.Delivered) {
			t.Errorf("%s again: %+v, want %s", name, again, tt.want)
		}
		if out := s.Probe(t.Context(), ""); out.Class != sink.Delivered {
			t.Errorf("a probe: %+v", out)
		}
	}
}
