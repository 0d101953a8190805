package blackbox

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// redisClient calls a function with a client of a server.
func redisClient(t testing.TB, server *servers.RedisServer, call func(ctx context.Context, c *redis.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: server.Addr, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	if err := call(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// redisEntries returns the entries of a stream in order.
func redisEntries(t testing.TB, server *servers.RedisServer, stream string) (all []redis.XMessage) {
	t.Helper()
	redisClient(t, server, func(ctx context.Context, c *redis.Client) (err error) {
		all, err = c.XRange(ctx, stream, "-", "+").Result()
		return err
	})
	return all
}

// redisStored returns the rows in the stream events in order.
func redisStored(t testing.TB, server *servers.RedisServer) (stored []sinktest.Received) {
	t.Helper()
	for _, e := range redisEntries(t, server, "events") {
		stored = append(stored, sinktest.Received{ID: fmt.Sprint(e.Values["id"]), Payload: []byte(fmt.Sprint(e.Values["data"]))})
	}
	return stored
}

// maxMemory limits the memory of the server, in bytes; 0 is no limit.
func maxMemory(t testing.TB, server *servers.RedisServer, bytes string) {
	t.Helper()
	redisClient(t, server, func(ctx context.Context, c *redis.Client) error {
		return c.ConfigSet(ctx, "maxmemory", bytes).Err()
	})
}

// The server is killed, frozen and out of memory, and the relay is killed, while rows are written.
// All rows are stored, the first arrivals of each group in order, and none has paid for it. By hand:
//
//	SLUICEBOX_TEST_CRASHES=20 go test -v -run 'TestRedisFaults' ./cmd/internal/blackbox
func TestRedisFaults(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		server := servers.Redis(s.t, nil)
		s.brokerFaults("type: redis, url: 'redis://"+server.Addr+"', stream: events, request-timeout: 500ms", []brokerFault{
			{func() { server.Stop("immediate") }, func() { server.Restart(nil) }},
			{server.Freeze, server.Thaw},
			{func() { maxMemory(s.t, server, "1") }, func() { maxMemory(s.t, server, "0") }},
		}, func() []sinktest.Received { return redisStored(s.t, server) })
	})
}

// A row above the server's limit is FAILED while the server accepts others, and not before: a server
// that is down makes no dead letter.
func TestRedisRowAboveTheLimit(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		server := servers.Redis(s.t, map[string]string{"proto-max-bulk-len": "1mb"})
		s.config = fmt.Sprintf(toBroker, nameFor(s.database), s.database, "type: redis, url: 'redis://"+server.Addr+"', stream: events", adminKey)
		b := &brokerScene{scene: s}
		b.start()
		server.Stop("immediate")
		s.numberIn("outbox_events", 900_001, 900_001, "900001", 2<<20)
		const failures = `sluicebox_delivery_attempts_total{outcome="unavailable",sink="bus"}`
		within(s.t, testTimeout, func() string {
			if b.relay.metric(failures) < 10 {
				return "the row is not tried"
			}
			return ""
		})
		if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'FAILED' OR retry_count > 0"); n > 0 {
			s.t.Error("a row has paid for a server that is down")
		}
		server.Restart(nil)
		within(s.t, testTimeout, func() string {
			b.write()
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'FAILED'"); n == 0 {
				return "the row above the limit is not FAILED"
			}
			return ""
		})
		awaitZero(s.t, "rows are not COMPLETED", func() int {
			return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status NOT IN ('COMPLETED', 'FAILED')")
		})
		stored := redisStored(s.t, server)
		again := checkNumbered(s.t, stored)
		if len(stored)-again != b.written {
			s.t.Errorf("%d rows are stored, want %d", len(stored)-again, b.written)
		}
		failed := s.rowState("0000000900001")
		s.t.Logf("%+v", failed)
		if failed.status != "FAILED" || !strings.Contains(failed.reason, "proto-max-bulk-len") {
			s.t.Errorf("the row above the limit is %+v", failed)
		}
		expectStop(s.t, b.relay)
	})
}
