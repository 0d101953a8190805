package kafka_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Rows of the benchmarks: groups, and bytes of a payload.
const (
	benchGroups     = 1000
	benchPayload    = 500
	benchPartitions = 4
)

// used returns the processor time of this process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cost is what rows cost a program.
type cost struct{ cpu, took time.Duration }

func measure(b *testing.B, work func()) cost {
	b.Helper()
	cpu, began := used(b), time.Now()
	work()
	return cost{used(b) - cpu, time.Since(began)}
}

// report reports the cost of b.N rows in two programs, and how much more processor time the second takes.
func report(b *testing.B, name string, base cost, other string, c cost) {
	for name, c := range map[string]cost{name: base, other: c} {
		b.ReportMetric(c.cpu.Seconds()*1e6/float64(b.N), name+"-cpu-µs/row")
		b.ReportMetric(float64(b.N)/c.took.Seconds(), name+"-rows/s")
	}
	b.ReportMetric(c.cpu.Seconds()/base.cpu.Seconds(), "x-cpu")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTopic measures the feeder beside a floor, which decodes the same log and appends the payloads,
// and relays behind the topic beside one that reads the database's log itself. Each reads b.N rows that the
// log already has. Processor time is that of this process, without the servers:
//
//	store/storetest/servers/servers.sh exec pg15 kafka -- go test -run '^$' -bench Topic -benchtime 50000x ./capture/kafka
//
// The goals are a feeder of at most 1.25 times the processor time of the floor, and relays of at most 1.6
// times that of the small form.
func BenchmarkTopic(b *testing.B) {
	c := servers.Kafka(b, 1, nil)
	b.Run("feeder", func(b *testing.B) {
		r := newBenchRig(b, c)
		r.stop()
		r.fill(b)
		floor := measure(b, func() { r.floor(b) })
		report(b, "floor", floor, "feeder", measure(b, func() { r.feed(b) }))
	})
	b.Run("relay", func(b *testing.B) {
		r := newBenchRig(b, c)
		r.stop()
		small := r.deliver(b, func(to *receiver) func() {
			return runRelay(b, r.name+"_small", postgres.Database{URL: r.url}, to)
		})
		servers.Exec(b, r.url, "TRUNCATE outbox_events")
		report(b, "small", small, "topic", r.deliver(b, func(to *receiver) func() {
			r.start(b)
			stops := []func(){func() { r.stop() }}
			for p := range benchPartitions {
				stops = append(stops, r.relay(b, p, to))
			}
			return func() {
				for _, stop := range stops {
					stop()
				}
			}
		}))
	})
}

func newBenchRig(b *testing.B, c *servers.KafkaCluster) *rig {
	r := &rig{url: servers.Database(b, servers.Versions()[0]), cluster: c, partitions: benchPartitions, batchRows: 500}
	r.begin(b)
	if resp, err := r.admin.CreateTopic(b.Context(), benchPartitions, 1, nil, r.name+"-floor"); err != nil || resp.Err != nil {
		b.Fatal(err, resp.Err)
	}
	return r
}

// fill inserts b.N rows, in transactions of 100.
func (r *rig) fill(b *testing.B) {
	for from := 0; from < b.N; from += 100 {
		servers.Exec(b, r.url, fmt.Sprintf(
			"INSERT INTO outbox_events (id, message_group, payload) SELECT n, 'g' || n %% %d, '%s' FROM generate_series(%d, %d) n",
			benchGroups, strings.Repeat("x", benchPayload), from, min(from+100, b.N)-1))
	}
}

// floor decodes the log from the checkpoint, and appends the payloads with the feeder's settings.
func (r *rig) floor(b *testing.B) {
	client, err := kgo.NewClient(append(r.client(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(50_000))...)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	src := r.database(b)
	at, err := r.tables.LoadCheckpoint(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	at.Legs = nil
	opened, err := src.Open(b.Context(), at, &capturetest.Tables{Viewer: r.tables})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	batches := make(chan capture.Batch)
	var work sync.WaitGroup
	work.Go(func() { _ = src.Run(ctx, capture.Span{From: opened.From}, batches) })
	for n := 0; n < b.N; {
		batch := <-batches
		for i := range batch.Items {
			hash := fnv.New32a()
			_, _ = hash.Write([]byte(batch.Items[i].Group.Name))
			rec := &kgo.Record{Topic: r.name + "-floor", Partition: int32(hash.Sum32() % benchPartitions), Value: batch.Items[i].Payload}
			client.Produce(ctx, rec, func(_ *kgo.Record, err error) {
				if err != nil {
					b.Error(err)
				}
			})
		}
		n += len(batch.Items)
	}
	if err := client.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	cancel()
	work.Wait()
	src.Close()
}

// feed runs the feeder until the topic has b.N rows.
func (r *rig) feed(b *testing.B) {
	before := r.feeder.Load().Status().Records
	r.start(b)
	for r.feeder.Load().Status().Records < before+int64(b.N) {
		<-time.After(time.Millisecond) // polls the status, which has no signal
	}
	r.stop()
}

// deliver measures relays that deliver b.N rows, once they have taken their snapshots and ended.
func (r *rig) deliver(b *testing.B, run func(*receiver) (stop func())) cost {
	to := &receiver{groups: map[string][]int{}, seen: map[string]bool{}}
	stop := run(to)
	servers.Exec(b, r.url, "INSERT INTO outbox_events (id, message_group, payload) SELECT 'first' || n, 'g' || n, '{}' FROM generate_series(1, 50) n")
	waitFor(b, "the relays deliver", func() bool { return to.count() >= 50 })
	stop()
	r.fill(b)
	return measure(b, func() {
		stop := run(to)
		waitFor(b, "all rows", func() bool { return to.count() >= b.N+50 })
		stop()
	})
}
