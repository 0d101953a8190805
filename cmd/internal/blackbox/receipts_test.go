package blackbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// recording is a broker whose receipts become columns of the row.
type recording struct {
	sink, record string   // the keys of the sink, and the key record
	columns      []string // with their types, in the order of the receipts
	names        string   // of the columns, as a list

	// rowAt returns the id of the row in the stored message with a receipt. Its values are
	// joined by /.
	rowAt func(receipt string) string
}

// Each COMPLETED row has the place of a message that carries this row, also if the relay was
// killed and the row was sent twice.
func TestReceiptsAreRecorded(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]func(t *testing.T) recording{"kafka": recordingKafka, "nats": recordingNATS, "redis": recordingRedis} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenes(t, servers.Spread(t, hosts()), "", func(s *scene) { s.recordsReceipts(name, broker(s.t)) })
		})
	}
}

func (s *scene) recordsReceipts(name string, of recording) {
	for _, column := range of.columns {
		s.exec("ALTER TABLE outbox_events ADD COLUMN " + column)
	}
	s.config = fmt.Sprintf(`
name: receipts_%s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: bus, record: %s}
sinks:
  bus: {%s, max-concurrent-groups: 4}
admin: {listen: %s}
`, name, s.database, of.record, of.sink, adminKey)
	const rows, groups = 3000, "i % 50"
	first := s.run()
	s.number(1, rows/2, groups)
	within(s.t, testTimeout, func() string {
		if n := s.completed(); n < 100 {
			return fmt.Sprintf("%d rows are COMPLETED, want 100", n)
		}
		return ""
	})
	first.kill()
	s.number(rows/2+1, rows, groups)
	second := s.run()
	s.untilCompleted("")

	ids := map[string]string{} // by receipt
	err := s.conn.each("SELECT id, concat_ws('/', "+of.names+") FROM outbox_events", nil, func(scan func(...any) error) error {
		var id, receipt string
		err := scan(&id, &receipt)
		if other, taken := ids[receipt]; taken {
			s.t.Errorf("rows %s and %s have the receipt %s", id, other, receipt)
		}
		ids[receipt] = id
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	wrong := 0
	for receipt, id := range ids {
		if at := of.rowAt(receipt); at != id {
			if wrong++; wrong <= 5 {
				s.t.Errorf("row %s has the receipt %q, where row %q is stored", id, receipt, at)
			}
		}
	}
	if len(ids) != rows || wrong > 0 {
		s.t.Errorf("receipts: got %d, of which %d are wrong; want %d", len(ids), wrong, rows)
	}
	if code := second.stop(); code != 0 {
		s.t.Errorf("exit code %d, want 0", code)
	}
}

func recordingKafka(t *testing.T) recording {
	const topic, partitions = "orders", 6
	cluster := servers.Kafka(t, 1, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addresses()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	stored := map[string]string{}
	read := func() {
		ends, err := admin.ListEndOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		all := 0
		ends.Each(func(end kadm.ListedOffset) { all += int(end.Offset) })
		for len(stored) < all {
			client.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
				for _, h := range r.Headers {
					if h.Key == "row" {
						stored[fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)] = string(h.Value)
					}
				}
			})
			if err := t.Context().Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return recording{
		sink:    fmt.Sprintf("type: kafka, brokers: %q, topic: %s, headers: {row: '{id}'}", cluster.Brokers[0].Address, topic),
		record:  "{topic: kafka_topic, partition: kafka_partition, offset: kafka_offset}",
		columns: []string{"kafka_topic VARCHAR(250)", "kafka_partition INT", "kafka_offset BIGINT"},
		names:   "kafka_topic, kafka_partition, kafka_offset",
		rowAt: func(receipt string) string {
			if len(stored) == 0 {
				read()
			}
			return stored[receipt]
		},
	}
}

func recordingNATS(t *testing.T) recording {
	server := servers.NATS.Start(t, nil)
	closed := make(chan struct{})
	conn, err := nats.Connect(server.URL, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); <-closed })
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	config := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: true}
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return recording{
		sink:    fmt.Sprintf("type: nats, url: %q, subject: 'orders.{group}', batch: atomic, headers: {Row: '{id}'}", server.URL),
		record:  "{sequence: nats_sequence, stream: nats_stream}",
		columns: []string{"nats_stream VARCHAR(250)", "nats_sequence BIGINT"},
		names:   "nats_stream, nats_sequence",
		rowAt: func(receipt string) string {
			var sequence uint64
			if _, err := fmt.Sscanf(receipt, "ORDERS/%d", &sequence); err != nil {
				return ""
			}
			m, err := stream.GetMsg(t.Context(), sequence)
			if err != nil {
				return ""
			}
			return m.Header.Get("Row")
		},
	}
}

func recordingRedis(t *testing.T) recording {
	server := servers.Redis(t, nil)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, DisableIdentity: true})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return recording{
		sink:    fmt.Sprintf("type: redis, url: 'redis://%s', stream: 'orders.{kind}', headers: {row: '{id}'}", server.Addr),
		record:  "{stream: redis_stream, id: redis_id}",
		columns: []string{"redis_stream VARCHAR(250)", "redis_id VARCHAR(50)"},
		names:   "redis_stream, redis_id",
		rowAt: func(receipt string) string {
			stream, id, _ := strings.Cut(receipt, "/")
			found, err := client.XRange(t.Context(), stream, id, id).Result()
			if err != nil || len(found) != 1 {
				return ""
			}
			row, _ := found[0].Values["row"].(string)
			return row
		},
	}
}
