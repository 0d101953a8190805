package blackbox

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// diskSize is the size of the disk of a broker in bytes, of which an empty Kafka needs most.
const diskSize = 96 << 20

// The disk of a broker is full while rows are written. Once it has room, and the broker was restarted if
// it must be, all rows are stored, the first arrivals of each group in order. None has paid for it.
//
//	SLUICEBOX_TEST_CRASHES=1 go test -v -run TestDiskOfABrokerFull ./cmd/internal/blackbox
//
// It takes minutes, so it runs only with the variable.
func TestDiskOfABrokerFull(t *testing.T) {
	t.Parallel()
	if os.Getenv(crashesVariable) == "" {
		t.Skip("set " + crashesVariable + " to fill the disks of brokers")
	}
	for name, test := range map[string]func(s *scene){
		"kafka": (*scene).kafkaDiskFull, "nats": (*scene).natsDiskFull, "rabbitmq": (*scene).rabbitDiskFull,
		"redis, appendfsync everysec": func(s *scene) { s.redisDiskFull("everysec") },
		"redis, appendfsync always":   func(s *scene) { s.redisDiskFull("always") },
	} {
		t.Run(name, func(t *testing.T) { aPostgres(t, "", test) }) // one after the other
	}
}

// full is a disk without room, and the restart of its broker once it has some.
func full(disk *servers.Disk, restart func()) []brokerFault {
	return []brokerFault{{func() { disk.Fill(0) }, func() { disk.Free(); restart() }}}
}

// A broker of Kafka ends when it cannot write. It has no index here: where the map of an index in memory has no
// disk behind it, Kafka 4.1 goes on with a broken partition and loses rows that it acknowledged (measured).
func (s *scene) kafkaDiskFull() {
	cluster := servers.Kafka(s.t, 1, map[string]string{"log.index.interval.bytes": "1073741824"})
	broker := cluster.Brokers[0]
	disk := broker.OnDisk(diskSize)
	b := &bus{t: s.t, cluster: cluster}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addresses()...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	b.admin = kadm.NewClient(client)
	if _, err := b.admin.CreateTopic(b.context(), 3, 1, nil, "orders"); err != nil {
		s.t.Fatal(err)
	}
	keys := fmt.Sprintf("type: kafka, brokers: [%s], topic: orders, headers: {id: '{id}'}, request-timeout: 1s", strings.Join(cluster.Addresses(), ", "))
	s.brokerFaults(keys, full(disk, func() { broker.Stop("immediate"); broker.Restart(nil) }), func() (stored []sinktest.Received) {
		for _, r := range b.records() {
			stored = append(stored, sinktest.Received{ID: string(r.Headers[0].Value), Payload: r.Value})
		}
		return stored
	})
}

func (s *scene) natsDiskFull() {
	n := &natsScene{scene: s, server: servers.NATS.Start(s.t, nil)}
	disk := n.server.OnDisk(diskSize)
	n.configure(-1)
	keys := fmt.Sprintf("type: nats, url: %q, subject: 'events.{group}', stream: EVENTS, headers: {row: '{id}'}, request-timeout: 1s", n.server.URL)
	n.brokerFaults(keys, full(disk, func() { n.server.Restart(nil) }), n.messages)
}

// RabbitMQ blocks its publishers while the disk has less room than it wants, and goes on by itself.
func (s *scene) rabbitDiskFull() {
	r := &rabbitScene{scene: s, server: servers.RabbitMQ(s.t, map[string]string{"disk_free_limit.absolute": "32MiB"})}
	disk := r.server.OnDisk(diskSize)
	r.declare()
	keys := fmt.Sprintf("type: rabbitmq, url: %q, exchange: events, routing-key: '{group}', request-timeout: 1s", r.server.URL)
	r.brokerFaults(keys, []brokerFault{{func() { disk.Fill(16 << 20) }, disk.Free}}, r.messages)
}

// Redis refuses writes and goes on by itself, or ends if it must not answer before the disk has a row.
func (s *scene) redisDiskFull(fsync string) {
	server := servers.Redis(s.t, map[string]string{"appendfsync": fsync})
	disk := server.OnDisk(diskSize)
	restart := func() {}
	if fsync == "always" {
		restart = func() { server.Restart(nil) }
	}
	s.brokerFaults("type: redis, url: 'redis://"+server.Addr+"', stream: events, request-timeout: 1s", full(disk, restart), func() []sinktest.Received {
		return redisStored(s.t, server)
	})
}
