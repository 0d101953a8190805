package blackbox

import (
	"context"
	"fmt"
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
		}, func() (stored []sinktest.Received) {
			for _, e := range redisEntries(s.t, server, "events") {
				stored = append(stored, sinktest.Received{ID: fmt.Sprint(e.Values["id"]), Payload: []byte(fmt.Sprint(e.Values["data"]))})
			}
			return stored
		})
	})
}
