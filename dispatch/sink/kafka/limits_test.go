package kafka

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A quota that holds up requests for longer than they may take is an outage. Nothing is lost or out
// of order, and rows are delivered once it is gone.
func (c *cluster) testThrottled(t *testing.T) {
	to := c.create(t, 1, nil)
	client := "throttled"
	quota := func(remove bool) {
		t.Helper()
		altered, err := to.admin.AlterClientQuotas(to.context(t), []kadm.AlterClientQuotaEntry{{
			Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &client}},
			Ops:    []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 100, Remove: remove}},
		}})
		if err != nil || len(altered) != 1 || altered[0].Err != nil {
			t.Fatalf("%v: %+v", err, altered)
		}
	}
	quota(false)
	cfg := to.config()
	cfg.Client, cfg.RequestTimeout = client, 500*time.Millisecond
	s := open(t, cfg)
	m := row("0", 0)
	m.Payload = bytes.Repeat([]byte("x"), 100_000)
	var want []string
	throttled := 0
	deliver := func() (delivered bool) {
		t.Helper()
		m.ID = fmt.Sprint(len(want))
		out := s.Deliver(t.Context(), []sink.Message{m}).Outcome
		switch {
		case out.Class == sink.Delivered:
			want = append(want, m.ID)
			return true
		case out.Class != sink.Unavailable || out.Suspect || !strings.Contains(out.Detail, "no answer within request-timeout"):
			t.Fatalf("a throttled row is %s, suspect %t: %s", out.Class, out.Suspect, out.Detail)
		}
		throttled++
		return false
	}
	for ctx := to.context(t); throttled < 3; {
		if ctx.Err() != nil {
			t.Fatalf("%d rows were delivered under a quota, and %d requests were throttled", len(want), throttled)
		}
		deliver()
	}
	quota(true)
	for ctx := to.context(t); !deliver(); {
		to.again(ctx, fmt.Errorf("row %s is not delivered without a quota", m.ID))
	}
	if got := slices.Compact(to.Stored()); !slices.Equal(got, want) {
		t.Errorf("stored are %q, want %q", got, want)
	}
	t.Logf("%d rows were delivered, %d requests were throttled", len(want), throttled)
}

// The policy of a topic for timestamps: a row's own time is its fault, and the other rows of the request
// are stored. The time of the attempt is that of a clock, which the operator must correct.
func (c *cluster) testTimestamps(t *testing.T) {
	to := c.create(t, 1, map[string]*string{"message.timestamp.after.max.ms": kadm.StringPtr("60000")})
	cfg := to.config()
	cfg.Format, cfg.Debezium.EventTimestamp, cfg.Headers = FormatDebezium, true, nil
	s := open(t, cfg)
	var msgs []sink.Message
	for i, at := range []time.Time{time.Now(), time.Now().Add(24 * time.Hour), time.Now()} {
		m := row(fmt.Sprint(i), i)
		m.Attributes = store.Attributes{{Name: store.AttributeTime, Value: at.Format(time.RFC3339Nano)}, {Name: "aggregateid", Value: "7"}}
		msgs = append(msgs, m)
	}
	res := s.Deliver(t.Context(), msgs)
	for i, want := range []sink.Class{sink.Delivered, sink.Rejected, sink.Delivered} {
		if out := res.At(i); out.Class != want || want == sink.Rejected && !strings.Contains(out.Detail, "INVALID_TIMESTAMP") {
			t.Errorf("row %d is %s, want %s: %s", i, out.Class, want, out.Detail)
		}
	}
	if got := fmt.Sprint(to.Stored()); got != "[0 2]" {
		t.Errorf("stored are %s, want [0 2]", got)
	}

	late := c.create(t, 1, map[string]*string{"message.timestamp.before.max.ms": kadm.StringPtr("1")})
	s = open(t, late.config())
	a := answers{delay: 20 * time.Millisecond} // the clock of this host is as much behind that of the broker
	a.dialFor(s)
	out := s.Deliver(t.Context(), []sink.Message{row("a", 0)}).Outcome
	if out.Class != sink.Misconfigured || !strings.Contains(out.Detail, "INVALID_TIMESTAMP") {
		t.Errorf("with a clock that is behind, a row is %s: %s", out.Class, out.Detail)
	}
}

// A broker fails on one row of many without a reason. The rows of the other lanes are stored in the
// same request. The row is suspect once the partition has stored others since it failed alone.
func (c *cluster) testSuspect(t *testing.T) {
	to := c.create(t, 1, nil)
	s := open(t, to.config())
	a := answers{poison: "poison"}
	a.dialFor(s)
	a.produce.Store(int32(kerr.UnknownServerError.Code))
	var msgs []sink.Message
	for lane := range 8 {
		for i := range 3 {
			m := row(fmt.Sprintf("%d-%d", lane, i), lane)
			if lane == 5 && i == 0 {
				m.Payload = []byte("poison")
			}
			msgs = append(msgs, m)
		}
	}
	bad := msgs[15]
	expect := func(what string, msgs []sink.Message, suspect bool) {
		t.Helper()
		res := s.Deliver(t.Context(), msgs)
		for i := range msgs {
			switch out := res.At(i); {
			case msgs[i].Lane != bad.Lane && out.Class != sink.Delivered:
				t.Errorf("%s: row %s is %s: %s", what, msgs[i].ID, out.Class, out.Detail)
			case msgs[i].Lane == bad.Lane && (out.Class != sink.Unavailable || out.Suspect != suspect):
				t.Errorf("%s: row %s is %s, suspect %t, want unavailable and %t: %s", what, msgs[i].ID, out.Class, out.Suspect, suspect, out.Detail)
			}
		}
	}
	expect("with others of its lane", msgs, false)
	expect("alone", []sink.Message{bad}, false)
	expect("alone again", []sink.Message{bad}, false)
	expect("alone in its lane, whose batch is stored without it", append([]sink.Message{bad}, msgs[18:]...), true)
	expect("after nothing else was stored", []sink.Message{bad}, false)
	deliverAll(t, s, row("x", 0))
	expect("after another row was stored", []sink.Message{bad}, true)
}

// A broker that fails on every row makes none suspect, and costs a request of many lanes two
// batches more.
func (c *cluster) testNoSuspect(t *testing.T) {
	to := c.create(t, 1, nil)
	s := open(t, to.config())
	var a answers
	a.dialFor(s)
	deliverAll(t, s, row("before", 0))
	a.produce.Store(int32(kerr.UnknownServerError.Code))
	var msgs []sink.Message
	for lane := range 100 {
		msgs = append(msgs, row(fmt.Sprint(lane), lane))
	}
	if res := s.Deliver(t.Context(), nil); res.Class != sink.Delivered {
		t.Errorf("no rows are %s: %s", res.Class, res.Detail)
	}
	before := a.requests.Load()
	for range 5 {
		for _, request := range [][]sink.Message{msgs, msgs[:1], msgs[1:2]} {
			res := s.Deliver(t.Context(), request)
			for i := range request {
				if out := res.At(i); out.Class != sink.Unavailable || out.Suspect {
					t.Fatalf("row %s is %s, suspect %t: %s", request[i].ID, out.Class, out.Suspect, out.Detail)
				}
			}
		}
	}
	if got := a.requests.Load() - before; got != 5*(3+1+1) {
		t.Errorf("%d produce requests, want 25", got)
	}
}
