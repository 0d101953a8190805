package ingest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ingest"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// benchClients are the clients that wait for their answers, as in the seed's load.
const benchClients = 200

// BenchmarkPostbox compares the server with a floor: the least handler that inserts each row in a
// transaction of its own.
//
//	servers.sh exec pg15 -- go test -run '^$' -bench Postbox -benchtime 5s -count 3 ./store/ingest
func BenchmarkPostbox(b *testing.B) {
	for _, version := range servers.Spread(b, servers.Versions()) {
		b.Run("server", func(b *testing.B) { benchServer(b, benchDatabase(b, version)) })
		b.Run("floor", func(b *testing.B) { benchFloor(b, benchDatabase(b, version)) })
	}
}

// benchDatabase returns the URL of a database with an empty postbox.
func benchDatabase(b *testing.B, version int) string {
	b.Helper()
	url := servers.Database(b, version)
	p, _ := layouts.Named("postbox")
	servers.Exec(b, url, strings.ReplaceAll(p.Schemas[layouts.Postgres].Create, "{table}", "postbox_messages"))
	return url
}

func benchServer(b *testing.B, url string) {
	writer, err := postgres.NewWriter(url, "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer writer.Close()
	c := config()
	c.Outboxes = []store.Outbox{postboxOutbox("postbox")}
	c.Outboxes[0].Table = "postbox_messages"
	c.Clients = c.Clients[:1]
	c.Clients[0].Outboxes = []string{"postbox"}
	table := &fakeTable{} // for the settled rows, which nobody asks for
	server, err := ingest.New(ingest.Options{Config: c, Writer: writer, Statuses: table, Observer: &recorder{statuses: map[int]int{}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Listen(); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	benchLoad(b, "http://"+server.Addr()+ingest.PostboxPath)
}

// floorHandler inserts row by row.
func floorHandler(pool *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID, PartitionID, Type, Payload string
			TenantID                       int64
		}
		err := json.NewDecoder(r.Body).Decode(&m)
		var created time.Time
		if err == nil {
			err = pool.QueryRow(r.Context(), `INSERT INTO postbox_messages (id, tenant_id, partition_id, type, payload, payload_size)
				VALUES ($1, $2, $3, $4, $5, $6) RETURNING created_at`, m.ID, m.TenantID, m.PartitionID, m.Type, m.Payload, len(m.Payload)).Scan(&created)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"id": m.ID, "created_at": created, "payload_size": len(m.Payload)})
	}
}

func benchFloor(b *testing.B, url string) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = 32
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	server := httptest.NewServer(floorHandler(pool))
	defer server.Close()
	benchLoad(b, server.URL)
}

// benchLoad sends b.N messages of benchClients clients, and reports the rate and the times.
func benchLoad(b *testing.B, url string) {
	transport := &http.Transport{MaxIdleConnsPerHost: benchClients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var sent atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	b.ResetTimer()
	var clients sync.WaitGroup
	for of := range benchClients {
		clients.Go(func() {
			var own []time.Duration
			for n := sent.Add(1); n <= int64(b.N); n = sent.Add(1) {
				began := time.Now()
				body := fmt.Sprintf(`{"id": "evt-%d", "tenantId": 1001, "partitionId": "p%d", "type": "EVENT", "payload": "{\"orderId\": \"ORD-%d\", \"status\": \"created\"}"}`, n, of, n)
				if err := sendOne(client, url, body); err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	clients.Wait()
	b.StopTimer()
	slices.Sort(took)
	if len(took) > 0 {
		b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "rows/s")
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	}
}

func sendOne(client *http.Client, url, body string) error {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer shop-token")
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("answer %d %s", resp.StatusCode, text)
	}
	return err
}
