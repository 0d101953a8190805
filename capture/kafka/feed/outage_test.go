package feed

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// outage returns a session whose Kafka does not answer.
func outage(t *testing.T, cfg Config) *session {
	t.Helper()
	cfg.Client, cfg.Topic = []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, "t"
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := f.connect()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(f, client, nil, nil)
	s.begin(1)
	s.appending, s.fail = context.WithCancelCause(t.Context())
	t.Cleanup(func() { s.fail(nil); s.end() })
	return s
}

func rows(n int) *capture.Batch {
	return &capture.Batch{Position: store.Position(fmt.Sprintf("0/%08X", n)), Items: []store.Item{{Ref: store.Ref{Outbox: "shop", ID: fmt.Sprint(n)}, Payload: []byte("{}"), PayloadSize: 2}}}
}

// While Kafka is down, a database without rows holds no more memory however long that takes: one
// record a partition, and one position.
func TestQuietOutage(t *testing.T) {
	const partitions = 8
	s := outage(t, Config{Partitions: partitions})
	if err := s.appendBatch(rows(0)); err != nil {
		t.Fatal(err)
	}
	for n := range 10_000 {
		if err := s.appendIdle(); err != nil {
			t.Fatal(err)
		}
		if err := s.appendBatch(&capture.Batch{Position: store.Position(fmt.Sprint(n))}); err != nil {
			t.Fatal(err)
		}
	}
	if now := s.f.Status(); now.Buffered != partitions {
		t.Errorf("%d records wait, want one for each of %d partitions", now.Buffered, partitions)
	}
	if n := len(s.progress.queue); n != 2 { // of the row, and of the records of the other partitions
		t.Errorf("%d batches wait, want 2", n)
	}
	for len(s.progress.queue) > 0 { // Kafka answers
		s.progress.acknowledged(s.progress.queue[0])
	}
	if at, rows := s.progress.Watermark(); at.Position != "9999" || rows != 1 {
		t.Errorf("the watermark is %s behind %d rows, want 9999 behind 1", at.Position, rows)
	}
}

// The limit of the buffer holds for all the memory of records, also of small ones.
func TestMemoryOfAnOutage(t *testing.T) {
	const limit = 16 << 20
	for _, payload := range []int{2, 1 << 10} {
		s := outage(t, Config{Partitions: 4, MaxBufferedBytes: limit, IdleInterval: math.MaxInt64})
		before := heap()
		for n, size := 0, heldBytes+payload+100; s.f.Status().Bytes < limit-2*size; n++ {
			b := rows(n)
			b.Items[0].Group = store.GroupOf(fmt.Sprint(n))
			b.Items[0].Payload = []byte(strings.Repeat("x", payload))
			if err := s.appendBatch(b); err != nil {
				t.Fatal(err)
			}
		}
		held, now := heap()-before, s.f.Status()
		t.Logf("payloads of %d bytes: %d records hold %d bytes each, %d are charged", payload, now.Buffered, held/int64(now.Buffered), now.Bytes/now.Buffered)
		if held > limit*11/10 {
			t.Errorf("payloads of %d bytes: %d records hold %d bytes, the limit is %d", payload, now.Buffered, held, limit)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
