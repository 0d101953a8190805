package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Answers of a broker that are rare, on a real one: the connection changes them.
func TestAnswers(t *testing.T) {
	c := newCluster(t, 1, nil)
	t.Run("stored though refused", c.testAppended)
	t.Run("limits unknown", c.testUnknownLimits)
	t.Run("raised limits", c.testRaisedLimits)
	t.Run("topics without ids", c.testNoTopicIDs)
	t.Run("a row that breaks the broker", c.testSuspect)
	t.Run("a broken broker", c.testNoSuspect)
}

// A leader appends a batch, loses the partition before the replicas have it, and answers that it
// does not lead. The next leader has the batch. Other rows with its numbers would be dropped.
func (c *cluster) testAppended(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.KafkaStorageError, kerr.UnknownServerError} {
		t.Run(code.Message, func(t *testing.T) {
			to := c.create(t, 1, nil)
			s := open(t, to.config())
			var a answers
			a.dialFor(s)
			a.produce.Store(int32(code.Code))
			if res := s.Deliver(t.Context(), []sink.Message{row("a", 0)}); res.At(0).Class != sink.Unavailable {
				t.Fatalf("row a is %s: %s", res.At(0).Class, res.At(0).Detail)
			}
			a.produce.Store(0)
			deliverAll(t, s, row("b", 0))
			if got := to.Stored(); !slices.Contains(got, "b") {
				t.Errorf("stored are %q, and b was delivered", got)
			}
		})
	}
}

// A limit that cannot be read, here for a moment, rejects no row.
func (c *cluster) testUnknownLimits(t *testing.T) {
	to := c.create(t, 1, map[string]*string{settingMaxMessage: kadm.StringPtr("4194304")})
	s := open(t, to.config())
	var a answers
	a.dialFor(s)
	a.configs.Store(int32(kerr.TopicAuthorizationFailed.Code))
	large := row("large", 1)
	large.Payload = bytes.Repeat([]byte("x"), 2<<20)
	deliverAll(t, s, large)
	huge := large
	huge.Payload = bytes.Repeat([]byte("x"), 5<<20)
	if res := s.Deliver(t.Context(), []sink.Message{huge}); res.At(0).Class != sink.Rejected {
		t.Errorf("a row above the limit is %s: %s", res.At(0).Class, res.At(0).Detail)
	}
}

// The limit of a topic is raised while the sink uses it. A leader that still judges by the old one ends no
// row, and the next attempt delivers it.
func (c *cluster) testRaisedLimits(t *testing.T) {
	to := c.create(t, 1, map[string]*string{settingMaxMessage: kadm.StringPtr("10000")})
	s := open(t, to.config())
	var a answers
	a.dialFor(s)
	large := row("large", 1)
	large.Payload = bytes.Repeat([]byte("x"), 20_000)
	deliver := func() sink.Outcome {
		res := s.Deliver(t.Context(), []sink.Message{large})
		return res.At(0)
	}
	if out := deliver(); out.Class != sink.Rejected || !out.Final {
		t.Fatalf("a row above the limit is %s, final %t: %s", out.Class, out.Final, out.Detail)
	}
	if _, err := to.admin.AlterTopicConfigs(to.context(t), []kadm.AlterConfig{{Name: settingMaxMessage, Value: kadm.StringPtr("40000")}}, to.name); err != nil {
		t.Fatal(err)
	}
	a.produce.Store(int32(kerr.MessageTooLarge.Code))
	for end := time.Now().Add(30 * time.Second); ; { // a topic is read once in limitAge
		if out := deliver(); out.Class == sink.Rejected && !out.Final {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a row that the leader judges by the old limit is %s, final %t: %s", out.Class, out.Final, out.Detail)
		}
		<-time.After(50 * time.Millisecond)
	}
	a.produce.Store(0)
	deliverAll(t, s, large)
	if got := to.Stored(); !slices.Contains(got, "large") {
		t.Errorf("stored are %q, want large", got)
	}
}

// Topics of a cluster without ids, before Kafka 2.8 or of another make, have numbers of their own.
func (c *cluster) testNoTopicIDs(t *testing.T) {
	first, second := c.create(t, 1, nil), c.create(t, 1, nil)
	cfg := first.config()
	cfg.Topic = "orders-{attr.n}"
	s := open(t, cfg)
	options := s.options
	s.options = func() []kgo.Opt { return append(slices.Clone(options()), kgo.MaxVersions(kversion.V2_7_0())) }
	for i, to := range []*topicOf{first, second, first, second} {
		m := row(fmt.Sprint(i), 0)
		m.Attributes = store.Attributes{{Name: "n", Value: strings.TrimPrefix(to.name, "orders-")}}
		deliverAll(t, s, m)
	}
}

// answers replaces the codes of a broker's answers, 0 for none.
type answers struct {
	produce, configs atomic.Int32
	requests         atomic.Int64 // to produce

	// poison restricts produce to the requests with this text.
	poison string

	delay time.Duration // of requests to produce
}

// dialFor makes a sink that has not connected use connections with these answers.
func (a *answers) dialFor(s *Sink) {
	options := s.options
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &answersConn{Conn: conn, answers: a, asked: map[uint32]kmsg.Request{}}, err
	}
	s.options = func() []kgo.Opt { return append(slices.Clone(options()), kgo.Dialer(dial)) }
}

// answersConn is one connection. It changes the answers to produce and describe-configs requests.
type answersConn struct {
	net.Conn
	answers *answers
	ready   bytes.Buffer // what the client has not read

	mu    sync.Mutex
	asked map[uint32]kmsg.Request // by correlation
}

// Write notes the request. The client writes each at once.
func (c *answersConn) Write(b []byte) (int, error) {
	if len(b) > 12 {
		req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(b[4:])))
		_, produces := req.(*kmsg.ProduceRequest)
		if produces {
			c.answers.requests.Add(1)
			<-time.After(c.answers.delay)
		}
		if req != nil && (!produces || bytes.Contains(b, []byte(c.answers.poison))) {
			req.SetVersion(int16(binary.BigEndian.Uint16(b[6:])))
			c.mu.Lock()
			c.asked[binary.BigEndian.Uint32(b[8:])] = req
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

// Read returns answers with their codes replaced.
func (c *answersConn) Read(b []byte) (int, error) {
	if c.ready.Len() == 0 {
		var size [4]byte
		if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
			return 0, err
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c.Conn, frame); err != nil {
			return 0, err
		}
		frame = c.replace(frame)
		c.ready.Write(binary.BigEndian.AppendUint32(nil, uint32(len(frame))))
		c.ready.Write(frame)
	}
	return c.ready.Read(b)
}

// replace returns an answer with its codes replaced.
func (c *answersConn) replace(frame []byte) []byte {
	c.mu.Lock()
	req := c.asked[binary.BigEndian.Uint32(frame)]
	c.mu.Unlock()
	if req == nil {
		return frame
	}
	resp, head := req.ResponseKind(), 4
	if resp.IsFlexible() && resp.Key() != kmsg.ApiVersions.Int16() {
		head = 5 // no tags
	}
	var code int32
	switch resp := resp.(type) {
	case *kmsg.ProduceResponse:
		if code = c.answers.produce.Load(); code != 0 && resp.ReadFrom(frame[head:]) == nil {
			for i := range resp.Topics {
				for j := range resp.Topics[i].Partitions {
					resp.Topics[i].Partitions[j].ErrorCode = int16(code)
				}
			}
			return resp.AppendTo(frame[:head:head])
		}
	case *kmsg.DescribeConfigsResponse:
		if code = c.answers.configs.Load(); code != 0 && resp.ReadFrom(frame[head:]) == nil {
			for i := range resp.Resources {
				resp.Resources[i].ErrorCode, resp.Resources[i].Configs = int16(code), nil
			}
			return resp.AppendTo(frame[:head:head])
		}
	}
	return frame
}
