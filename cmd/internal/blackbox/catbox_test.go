package blackbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// catboxConfig relays the table of Catbox as its own publisher does: the topic is the type, the key
// is the aggregate's id, and partition and offset are written back.
const catboxConfig = `
name: %s
source: {url: %q}
outboxes:
  - table: outbox_events
    layout: catbox
    columns: {group: aggregate_id}
    dead-letter-table: outbox_dead_letter_events
    record: {partition: kafka_partition, offset: kafka_offset}
    sink: bus
sinks:
  bus: {type: kafka, brokers: [%s], topic: '{type}', headers: {row: '{id}'}, max-retries: 4, backoff: {initial: 20ms, max: 200ms}}
dispatch: {takeover: timeout, processing-timeout-seconds: 5}
checkpoint: {sweep-interval: 200ms}
admin: {listen: %s}
`

// catboxClusters relays the table to two clusters, of which one is optional.
const catboxClusters = `
name: %s
source: {url: %q}
outboxes:
  - table: outbox_events
    layout: catbox
    columns: {group: aggregate_id}
    routes:
      - {name: eu, sink: kafka-eu}
      - {name: us, sink: kafka-us, need: optional}
sinks:
  kafka-eu: {type: kafka, brokers: [%s], topic: '{type}', headers: {row: '{id}'}}
  kafka-us: {type: kafka, brokers: [%s], topic: '{type}', headers: {row: '{id}'}, backoff: {initial: 50ms, max: 500ms}}
dispatch: {takeover: timeout, processing-timeout-seconds: 5}
admin: {listen: %s}
`

// catboxTopics are the types of events.
func catboxTopics() []string { return []string{"OrderCreated", "OrderPaid"} }

// kafkaCluster is a cluster of one broker with the topics of Catbox' events.
type kafkaCluster struct {
	*servers.KafkaCluster
	t        *testing.T
	admin    *kadm.Client
	consumer *kgo.Client
	records  []*kgo.Record
}

func newKafkaCluster(t *testing.T) *kafkaCluster {
	t.Helper()
	c := &kafkaCluster{KafkaCluster: servers.Kafka(t, 1, nil), t: t}
	var err error
	if c.consumer, err = kgo.NewClient(kgo.SeedBrokers(c.Addresses()...), kgo.ConsumeTopics(catboxTopics()...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.consumer.Close)
	c.admin = kadm.NewClient(c.consumer)
	created, err := c.admin.CreateTopics(t.Context(), 3, 1, nil, catboxTopics()...)
	if err == nil {
		err = created.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await reads records until as many have arrived.
func (c *kafkaCluster) await(records int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), testTimeout)
	defer cancel()
	for len(c.records) < records {
		fetches := c.consumer.PollRecords(ctx, 0)
		if ctx.Err() != nil {
			c.t.Fatalf("%d records arrived, want %d", len(c.records), records)
		}
		c.records = append(c.records, fetches.Records()...)
	}
}

// insertCatbox inserts events in one transaction each, from and to included. Each aggregate has
// both types.
func (s *scene) insertCatbox(from, to int) {
	s.t.Helper()
	for i := from; i <= to; i++ {
		_, err := s.conn.exec("INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', $1, $2, '{}', now())",
			fmt.Sprintf("order-%d", i%7), catboxTopics()[i%2])
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// prepareCatbox creates Catbox' tables.
func (s *scene) prepareCatbox() {
	s.t.Helper()
	s.exec("DROP TABLE outbox_events")
	initOutbox(s.t, "catbox", s.database)
	like := "LIKE outbox_events"
	if s.kind.postgres {
		like = "(LIKE outbox_events)"
	}
	s.exec("ALTER TABLE outbox_events ADD COLUMN kafka_partition INT", "ALTER TABLE outbox_events ADD COLUMN kafka_offset BIGINT",
		"CREATE TABLE outbox_dead_letter_events "+like)
}

// A relay in place of Catbox: topic, key and receipts; an event that Kafka cannot take moves to the
// table for dead letters; the relay sends an event again that
// somebody marked unsent; it leaves an event that Catbox itself holds until its lease ends.
func TestCatbox(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		s.prepareCatbox()
		cluster := newKafkaCluster(s.t)
		s.config = fmt.Sprintf(catboxConfig, nameFor(s.database), s.database, strings.Join(cluster.Addresses(), ", "), adminKey)
		until := time.Now().Add(3 * time.Second) // of 4 s, because now() of MySQL has no fraction
		if _, err := s.conn.exec("INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at, in_progress_until) VALUES ('order', 'held', 'OrderPaid', '{}', now(), now() + interval '4' second)"); err != nil {
			s.t.Fatal(err)
		}
		r := s.run()
		s.insertCatbox(1, 60)
		cluster.await(61)
		s.checkCatbox(cluster, 61)
		for _, record := range cluster.records {
			if string(record.Key) == "held" && record.Timestamp.Before(until) {
				s.t.Errorf("the event that another program holds was sent %s early", until.Sub(record.Timestamp))
			}
		}

		if _, err := s.conn.exec("INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', 'order-1', 'no topic of this name!', '{}', now())"); err != nil {
			s.t.Fatal(err)
		}
		s.insertCatbox(61, 70) // the aggregate goes on
		cluster.await(71)
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_dead_letter_events WHERE event_type LIKE 'no topic%' AND last_error IS NOT NULL"); n != 1 {
				return fmt.Sprintf("%d rows in the table for dead letters, want 1", n)
			}
			return none(s.t, s.conn, "of this type are still in the outbox", "SELECT count(*) FROM outbox_events WHERE event_type LIKE 'no topic%'")
		})
		if out, errs, code := r.sluicebox("deadletters", "list"); code != 0 || strings.Contains(out, "no topic") {
			s.t.Errorf("deadletters list: exit code %d\n%s%s", code, out, errs)
		}

		if _, err := s.conn.exec("UPDATE outbox_events SET sent_at = NULL WHERE aggregate_id = 'held'"); err != nil {
			s.t.Fatal(err)
		}
		awaitZero(s.t, "events that were marked unsent are not sent", func() int {
			return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL")
		})
		cluster.await(72)
		s.checkCatbox(cluster, 71) // each event once, but the unsent one twice
		expectStop(s.t, r)
	})
}

// Two clusters, as in Catbox' rules. The optional one is dead for a while: the other gets all events,
// which are marked as sent meanwhile. The dead cluster gets the events that it has missed, in the order of each
// aggregate and type. For a minute:
//
//	SLUICEBOX_TEST_OUTAGE=1m go test -v -run 'TestCatboxClusters' ./cmd/internal/blackbox
func TestCatboxClusters(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		s.prepareCatbox()
		eu, us := newKafkaCluster(s.t), newKafkaCluster(s.t)
		s.config = fmt.Sprintf(catboxClusters, nameFor(s.database), s.database, strings.Join(eu.Addresses(), ", "), strings.Join(us.Addresses(), ", "), adminKey)
		r := s.run()
		s.insertCatbox(1, 20)
		us.await(20)

		us.Brokers[0].Stop("immediate")
		last := 20
		for end := time.Now().Add(lasting(s.t, 2*time.Second)); time.Now().Before(end); last += 20 {
			s.insertCatbox(last+1, last+20)
			eu.await(last + 20)
			awaitZero(s.t, "events are not marked as sent, because the optional cluster is dead", func() int {
				return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL")
			})
		}
		us.Brokers[0].Restart(nil)
		began := time.Now()
		us.await(last)
		s.t.Logf("the optional cluster has %d events %s after its return", last, time.Since(began).Round(time.Millisecond))
		if again := eu.checkEvents("eu", last); again > 0 {
			s.t.Errorf("cluster eu, which was never dead, has %d events twice", again)
		}
		s.t.Logf("the cluster that was dead has %d events twice", us.checkEvents("us", last))
		expectStop(s.t, r)
	})
}

// checkEvents checks that the cluster has the events 1 to last of insertCatbox, in order per aggregate
// and type. It returns the number of repeated events.
func (c *kafkaCluster) checkEvents(name string, last int) (again int) {
	c.t.Helper()
	seen, latest := map[string]bool{}, map[string]string{}
	for _, r := range c.records {
		id, lane := string(r.Headers[0].Value), fmt.Sprintf("%s %s", r.Topic, r.Key)
		if seen[id] {
			again++
			continue
		}
		if before := latest[lane]; len(id) < len(before) || len(id) == len(before) && id < before {
			c.t.Errorf("cluster %s: event %s of %s arrived after event %s", name, id, lane, before)
		}
		seen[id], latest[lane] = true, id
	}
	if len(seen) != last {
		c.t.Errorf("cluster %s has %d events, want %d", name, len(seen), last)
	}
	return again
}

// checkCatbox checks topic, key and receipt of all rows, each of which has the latest of its records.
func (s *scene) checkCatbox(cluster *kafkaCluster, rows int) {
	s.t.Helper()
	awaitZero(s.t, "events are not marked as sent", func() int {
		return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL")
	})
	at := map[string]string{}
	for _, r := range cluster.records {
		at[string(r.Headers[0].Value)] = fmt.Sprintf("%s %s %d %d", r.Topic, r.Key, r.Partition, r.Offset)
	}
	n := 0
	err := s.conn.each("SELECT id, event_type, aggregate_id, kafka_partition, kafka_offset FROM outbox_events", nil, func(scan func(...any) error) error {
		var id, typ, aggregate string
		var partition, offset int
		err := scan(&id, &typ, &aggregate, &partition, &offset)
		if got, want := at[id], fmt.Sprintf("%s %s %d %d", typ, aggregate, partition, offset); err == nil && got != want {
			s.t.Errorf("row %s is the record %q, want %q", id, got, want)
		}
		n++
		return err
	})
	if err != nil || n != rows {
		s.t.Errorf("%d rows, %v; want %d", n, err, rows)
	}
}
