package kafka

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// What a consumer gets, and how the relay authenticates, on one real broker.
func TestRecords(t *testing.T) {
	// A broker that a busy machine delays keeps its partitions.
	c := newCluster(t, 1, map[string]string{"broker.session.timeout.ms": "60000"})
	t.Run("Formats", c.testFormats)
	t.Run("Keys", c.testKeys)
	t.Run("Debezium", c.testDebezium)
	t.Run("KeysOfALane", c.testKeysOfALane)
	t.Run("Compression", c.testCompression)
	t.Run("Sizes", c.testSizes)
	t.Run("Topics", c.testTopics)
	t.Run("Partitions", c.testPartitions)
	t.Run("Growth", c.testGrowth)
	t.Run("Throttled", c.testThrottled)
	t.Run("Timestamps", c.testTimestamps)
	t.Run("Credentials", c.testCredentials)
	t.Run("Probe", c.testProbe)
}

// row returns a message of a lane of its own.
func row(id string, lane int) sink.Message {
	return sink.Message{ID: id, Kind: "order", Group: store.GroupOf("customer 7"), Payload: []byte(`{"n":1}`), Lane: lane, Attempt: 1}
}

// deliverAll delivers messages, and fails the test if one is not delivered.
func deliverAll(t *testing.T, s *Sink, msgs ...sink.Message) sink.Result {
	t.Helper()
	res := s.Deliver(t.Context(), msgs)
	for i := range msgs {
		if out := res.At(i); out.Class != sink.Delivered {
			t.Fatalf("row %s is %s: %s", msgs[i].ID, out.Class, out.Detail)
		}
	}
	return res
}

func (c *cluster) testFormats(t *testing.T) {
	for format, want := range map[event.Format]string{
		event.FormatRaw:         `customer 7 {"n":1} map[id:a]`,
		event.FormatCloudEvents: `customer 7 {"n":1} map[ce_id:a ce_partitionkey:customer 7 ce_source:/shop ce_specversion:1.0 ce_subject:customer 7 ce_type:order content-type:application/json id:a]`,
		event.FormatStructured: `customer 7 {"datacontenttype":"application/json","id":"a","partitionkey":"customer 7","source":"/shop","specversion":"1.0","subject":"customer 7","type":"order","data":{"n":1}} ` +
			`map[content-type:application/cloudevents+json; charset=utf-8 id:a]`,
	} {
		to := c.create(t, 1, nil)
		cfg := to.config()
		if cfg.Format = format; format.IsEvent() {
			cfg.CloudEventsSource = "/shop"
		}
		cfg.Receipts = true
		tombstone := row("b", 1)
		tombstone.Payload = nil
		res := deliverAll(t, open(t, cfg), row("a", 0), tombstone)
		records := to.records()
		headers := map[string]string{}
		for _, h := range records[0].Headers {
			headers[h.Key] = string(h.Value)
		}
		if got := fmt.Sprintf("%s %s %v", records[0].Key, records[0].Value, headers); got != want {
			t.Errorf("%s: the record is\n%s, want\n%s", format, got, want)
		}
		if records[1].Value != nil {
			t.Errorf("%s: the value of a row without a payload is %q, want null", format, records[1].Value)
		}
		if got, want := fmt.Sprint(res.At(1).Receipt), fmt.Sprintf("[{topic %s} {partition 0} {offset 1}]", to.name); got != want {
			t.Errorf("%s: the receipt is %s, want %s", format, got, want)
		}
	}
}

func (c *cluster) testKeys(t *testing.T) {
	for key, want := range map[Key]string{KeyGroup: `"customer 7" <nil>`, KeyID: `"0" "1"`, KeyNone: "<nil> <nil>"} {
		to := c.create(t, 8, nil)
		cfg := to.config()
		cfg.Key = key
		s := open(t, cfg)
		if mode := s.Limits("order").Mode; (mode == sink.Prefix) != (key == KeyGroup) {
			t.Errorf("key %s: the mode is %d", key, mode)
		}
		const rows = 64
		for i := range rows {
			m := row(strconv.Itoa(i), 0)
			m.Group.Valid = i%2 == 0
			deliverAll(t, s, m)
		}
		texts, places := map[string]string{}, map[bool]map[int32]bool{false: {}, true: {}}
		for _, r := range to.records() {
			texts[header(r, "id")] = strings.Replace(fmt.Sprintf("%q", r.Key), `""`, "<nil>", 1)
			places[r.Key == nil][r.Partition] = true
		}
		if got := texts["0"] + " " + texts["1"]; got != want {
			t.Errorf("key %s: rows with and without a group have %s, want %s", key, got, want)
		}
		if key == KeyGroup && (len(places[false]) != 1 || len(places[true]) != 1) {
			t.Errorf("key %s: a group is in %d partitions, rows without one in %d, want 1", key, len(places[false]), len(places[true]))
		}
		if key == KeyNone && len(places[true]) != 8 {
			t.Errorf("key %s: rows are in %d of 8 partitions", key, len(places[true]))
		}
	}
}

func (c *cluster) testCompression(t *testing.T) {
	for _, codec := range []Compression{CompressionNone, CompressionGzip, CompressionSnappy, CompressionLZ4, CompressionZstd} {
		to := c.create(t, 1, nil)
		cfg := to.config()
		cfg.Compression = codec
		m := row("a", 0)
		m.Payload = []byte(strings.Repeat("abc ", 1000))
		deliverAll(t, open(t, cfg), m)
		r := to.records()[0]
		if string(r.Value) != string(m.Payload) || kgo.CompressionCodecType(r.Attrs.CompressionType()) != compressionType(codec) {
			t.Errorf("%s: got %d bytes, compressed by %d", codec, len(r.Value), r.Attrs.CompressionType())
		}
	}
}

func compressionType(c Compression) kgo.CompressionCodecType {
	return map[Compression]kgo.CompressionCodecType{
		CompressionGzip: kgo.CodecGzip, CompressionSnappy: kgo.CodecSnappy, CompressionLZ4: kgo.CodecLz4, CompressionZstd: kgo.CodecZstd,
	}[c]
}

// The limit of a topic bounds the batches. Rows that do not fit wait, and one that is too large
// is rejected, alone.
func (c *cluster) testSizes(t *testing.T) {
	to := c.create(t, 1, map[string]*string{"max.message.bytes": kadm.StringPtr("10000")})
	s := open(t, to.config())
	var msgs []sink.Message
	for i, size := range []int{4000, 4000, 4000, 20000, 10} {
		m := row(fmt.Sprint(i), i)
		m.Payload = make([]byte, size)
		msgs = append(msgs, m)
	}
	res := s.Deliver(t.Context(), msgs)
	want := []sink.Class{sink.Delivered, sink.Delivered, sink.NotSent, sink.Rejected, sink.Delivered}
	for i := range msgs {
		if out := res.At(i); out.Class != want[i] {
			t.Errorf("row %d is %s (%s), want %s", i, out.Class, out.Detail, want[i])
		}
	}

	// A limit that was lowered since is noticed by the refusal.
	if _, err := to.admin.AlterTopicConfigs(to.context(t), []kadm.AlterConfig{{Name: "max.message.bytes", Value: kadm.StringPtr("2000")}}, to.name); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; { // the broker applies the limit after its answer
		res := s.Deliver(t.Context(), msgs[2:3])
		out := res.At(0)
		if out.Class == sink.Rejected {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("row 2 is %s (%s), want rejected", out.Class, out.Detail)
		}
	}
	deliverAll(t, s, msgs[4])
}

// A topic of the row: each has its own endpoint, and a name that Kafka does not allow is the
// row's fault.
func (c *cluster) testTopics(t *testing.T) {
	to := c.create(t, 1, nil)
	cfg := to.config()
	cfg.Topic = "orders-{attr.n}"
	s := open(t, cfg)
	named := func(n string) sink.Message {
		m := row(n, 0)
		m.Attributes = store.Attributes{{Name: "n", Value: n}}
		return m
	}
	n := strings.TrimPrefix(to.name, "orders-")
	good, bad, gone := named(n), named("a b"), named("gone")
	deliverAll(t, s, good)
	of := s.Limits("order").EndpointOf
	if of(&good) != to.name || of(&bad) != "" {
		t.Errorf("the endpoints are %q and %q", of(&good), of(&bad))
	}
	if res := s.Deliver(t.Context(), []sink.Message{bad}); res.Class != sink.Rejected || !res.Unsent {
		t.Errorf("a topic with a blank is %s (%s), unsent %t", res.Class, res.Detail, res.Unsent)
	}
	if res := s.Deliver(t.Context(), []sink.Message{gone}); res.Class != sink.Misconfigured {
		t.Errorf("a topic that does not exist is %s (%s)", res.Class, res.Detail)
	}
}

// A key has the partition that the Java client gives it. The hashes are those of the tests of
// org.apache.kafka.common.utils.Utils.
func (c *cluster) testPartitions(t *testing.T) {
	to := c.create(t, 7, nil)
	p, err := open(t, to.config()).take()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		for _, n := range []int{1, 7, 50, 1 << 20} {
			if got, want := p.partition([]byte(key), n), (hash&0x7fffffff)%int32(n); got != want {
				t.Errorf("key %s is in partition %d of %d, want %d", key, got, n, want)
			}
		}
	}
}

// New partitions are noticed, once.
func (c *cluster) testGrowth(t *testing.T) {
	to := c.create(t, 1, nil)
	s := open(t, to.config())
	deliverAll(t, s, row("a", 0))
	if _, err := to.admin.CreatePartitions(to.context(t), 3, to.name); err != nil {
		t.Fatal(err)
	}
	for ctx := to.context(t); ; to.again(ctx, nil) {
		if all, err := to.admin.ListTopics(ctx, to.name); err == nil && len(all[to.name].Partitions) == 4 && !hasNoLeader(all[to.name]) {
			break
		}
	}
	s.topics.forget(to.name) // as after a minute
	if res := deliverAll(t, s, row("b", 0)); !strings.Contains(res.Notice, "4 partitions instead of 1") {
		t.Errorf("the notice is %q", res.Notice)
	}
	s.topics.forget(to.name)
	if res := deliverAll(t, s, row("c", 0)); res.Notice != "" {
		t.Errorf("the second notice is %q", res.Notice)
	}
}

func (c *cluster) testCredentials(t *testing.T) {
	ctx := (&topicOf{cluster: c, tb: t}).context(t)
	acl := kadm.NewACLs().Allow("User:relay").AllowHosts("*").Topics("orders-").ResourcePatternType(kadm.ACLPatternPrefixed).
		Operations(kadm.OpWrite, kadm.OpDescribe)
	if _, err := c.admin.CreateACLs(ctx, acl); err != nil {
		t.Fatal(err)
	}
	for _, m := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		if _, err := c.admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "relay", Mechanism: m, Iterations: 4096, Password: servers.KafkaPassword}}); err != nil {
			t.Fatal(err)
		}
	}
	to := c.create(t, 1, nil)
	for _, m := range []Mechanism{MechanismPlain, MechanismSCRAM256, MechanismSCRAM512} {
		s := open(t, to.saslConfig(m, servers.KafkaPassword))
		deliverAll(t, s, row(string(m), 0))
		if out := s.Probe(t.Context(), ""); out.Class != sink.Delivered || !strings.Contains(out.Detail, "grant DescribeConfigs") {
			t.Errorf("%s: the probe is %s: %s", m, out.Class, out.Detail)
		}
	}

	cfg := to.saslConfig(MechanismOAuthBearer, "")
	cfg.SASL = SASL{Mechanism: MechanismOAuthBearer}
	cfg.OAuth = OAuth{TokenURL: tokenEndpoint(t), ClientID: "relay", ClientSecret: "s"}
	deliverAll(t, open(t, cfg), row("oauth", 0))

	cfg = to.config()
	cfg.Brokers, cfg.CAFile = []string{to.Brokers[0].TLS}, to.CAFile
	if res := open(t, cfg).Deliver(t.Context(), []sink.Message{row("tls", 0)}); res.Class != sink.Delivered {
		t.Errorf("with TLS a row is %s: %s", res.Class, res.Detail)
	}
	cfg.CertFile, cfg.KeyFile = to.CertFile, to.KeyFile
	s := open(t, cfg)
	if res := s.Deliver(t.Context(), []sink.Message{row("cert", 0)}); res.Class != sink.Misconfigured || !strings.Contains(res.Detail, "AUTHORIZATION") {
		t.Errorf("the user of a certificate has no grant, and a row is %s: %s", res.Class, res.Detail)
	}
	acl = kadm.NewACLs().Allow("User:CN=localhost").AllowHosts("*").Topics(to.name).ResourcePatternType(kadm.ACLPatternLiteral).
		Operations(kadm.OpWrite, kadm.OpDescribe)
	if _, err := c.admin.CreateACLs(ctx, acl); err != nil {
		t.Fatal(err)
	}
	for s.Deliver(ctx, []sink.Message{row("cert", 0)}).Class != sink.Delivered {
		to.again(ctx, errors.New("the user of a certificate has a grant, and no row is delivered"))
	}
}

// tokenEndpoint starts an endpoint whose tokens are not signed, which the broker is set to
// accept.
func tokenEndpoint(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// {"alg":"none"}.{"sub":"relay","iat":1700000000,"exp":4000000000}.
		_, _ = fmt.Fprint(w, `{"access_token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyZWxheSIsImlhdCI6MTcwMDAwMDAwMCwiZXhwIjo0MDAwMDAwMDAwfQ.", "token_type": "Bearer", "expires_in": 300}`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func (c *cluster) testProbe(t *testing.T) {
	to := c.create(t, 3, nil)
	probe := func(cfg Config, class sink.Class, words ...string) {
		t.Helper()
		out := open(t, cfg).Probe(context.WithoutCancel(t.Context()), "")
		for _, word := range words {
			if out.Class != class || !strings.Contains(out.Detail, word) {
				t.Errorf("the probe is %s, want %s with %q: %s", out.Class, class, word, out.Detail)
			}
		}
	}
	cfg := to.config()
	probe(cfg, sink.Delivered, "1 broker of Kafka v4.1", "3 partitions, 1 replicas, 1 in sync, min.insync.replicas 1", "records up to 1048588 bytes", "no record was sent")
	demanding := c.create(t, 1, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")})
	probe(demanding.config(), sink.Refused, "1 replicas", "min.insync.replicas is 2, so that older brokers refuse every write")
	cfg.Topic = "orders-{kind}"
	probe(cfg, sink.Delivered, "no topic was checked")
	cfg.Topic = "nowhere"
	probe(cfg, sink.Misconfigured, "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION", "create the topic")
	cfg = to.config()
	cfg.Brokers = []string{"127.0.0.1:1"}
	probe(cfg, sink.Unavailable, "connect to 127.0.0.1:1: ", "refused")
	probe(to.saslConfig(MechanismPlain, wrongPassword), sink.Misconfigured, "SASL_AUTHENTICATION_FAILED")
}
