package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// toRedis routes the events of a scene to a stream.
const toRedis = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: bus}
sinks:
  bus: {type: redis, url: 'redis://%s', stream: events, request-timeout: 500ms, backoff: {initial: 20ms, max: 200ms}}
admin: {listen: %s}
`

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

// redisScene is a relay that delivers to a Redis server.
type redisScene struct {
	*scene
	server  *servers.RedisServer
	relay   *relay
	written int
}

// maxMemory limits the memory of the server, in bytes; 0 is no limit.
func (s *redisScene) maxMemory(bytes string) {
	s.t.Helper()
	redisClient(s.t, s.server, func(ctx context.Context, c *redis.Client) error {
		return c.ConfigSet(ctx, "maxmemory", bytes).Err()
	})
}

// write writes some rows in several transactions.
func (s *redisScene) write() {
	s.t.Helper()
	for range 10 {
		n := 1 + rand.IntN(60)
		s.number(s.written+1, s.written+n, "i % 50")
		s.written += n
	}
}

// fails waits until a delivery fails as unavailable.
func (s *redisScene) fails(wrong func()) {
	s.t.Helper()
	const failures = `sluicebox_delivery_attempts_total{outcome="unavailable",sink="bus"}`
	before := s.relay.metric(failures)
	wrong()
	s.write()
	within(s.t, testTimeout, func() string {
		if s.relay.metric(failures) == before {
			return "no delivery fails"
		}
		return ""
	})
}

// The server is killed, frozen and out of memory, and the relay is killed, while rows are written.
// All rows are stored, the first arrivals of each group in order, and none has paid for it. By hand:
//
//	SLUICEBOX_TEST_CRASHES=20 go test -v -run 'TestRedisFaults' ./cmd/internal/blackbox
func TestRedisFaults(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(sc *scene) {
		s := &redisScene{scene: sc, server: servers.Redis(sc.t, nil)}
		s.config = fmt.Sprintf(toRedis, nameFor(s.database), s.database, s.server.Addr, adminKey)
		if d, text, code := doctor(s.t, s.config); code != 0 {
			s.t.Errorf("doctor ends with %d: %s\n%+v", code, text, d)
		}
		s.relay = start(s.t, s.config)
		s.relay.waitFor("source connected")
		for range crashes(s.t, 1) {
			s.write()
			s.fails(func() { s.server.Stop("immediate") })
			s.server.Restart(nil)
			s.write()
			s.fails(s.server.Freeze)
			s.server.Thaw()
			s.write()
			s.fails(func() { s.maxMemory("1") })
			s.maxMemory("0")
			s.write()
			s.relay.kill()
			s.relay = start(s.t, s.config)
			s.relay.waitFor("source connected")
		}
		s.write()
		awaitZero(s.t, "rows are not COMPLETED", func() int {
			return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		var stored []sinktest.Received
		for _, e := range redisEntries(s.t, s.server, "events") {
			stored = append(stored, sinktest.Received{ID: fmt.Sprint(e.Values["id"]), Payload: []byte(fmt.Sprint(e.Values["data"]))})
		}
		again := checkNumbered(s.t, stored)
		if len(stored)-again != s.written {
			s.t.Errorf("%d messages are stored, %d of them again, want %d", len(stored), again, s.written)
		}
		if left := none(s.t, s.conn, "paid for the faults", "SELECT count(*) FROM outbox_events WHERE retry_count > 0"); left != "" {
			s.t.Error(left)
		}
		s.t.Logf("%d rows, %d again", s.written, again)
		expectStop(s.t, s.relay)
	})
}
