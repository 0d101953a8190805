//go:build unix

package sqlite_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
)

// TestLatency measures from the service's commit to the received batch, with a service that
// syncs each commit and with a service that does not.
func TestLatency(t *testing.T) {
	for _, level := range []string{"NORMAL", "FULL"} {
		t.Run(level, func(t *testing.T) {
			d := newDatabase(t)
			d.db.SetMaxOpenConns(1)
			d.exec(t, "PRAGMA synchronous = "+level)
			r, _ := read(t, d, d.config(), store.Checkpoint{})
			const n = 300
			took := make([]time.Duration, n)
			for i := range n {
				row := capturetest.Row{ID: fmt.Sprint(i), Payload: "{}"}
				committed := make(chan time.Time, 1)
				go func() {
					if err := d.insert(true, row); err != nil {
						t.Error(err)
					}
					committed <- time.Now()
				}()
				r.until("a row", func() bool { return len(r.ids) > i })
				received := time.Now()
				// The reader may receive the row before the service's commit returns.
				took[i] = max(0, received.Sub(<-committed))
			}
			slices.Sort(took)
			t.Logf("insert commit to received batch: median %s, p90 %s, p99 %s", took[n/2], took[n*9/10], took[n*99/100])
			if took[n/2] > 20*time.Millisecond {
				t.Errorf("the median is %s: the reader is not woken by the commit", took[n/2])
			}
		})
	}
}

// TestIdle measures the cost of a source while nothing is written, and checks that it writes
// nothing.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	d := newDatabase(t)
	r, _ := read(t, d, d.config(), store.Checkpoint{})
	d.commit(t, capturetest.Row{ID: "1"})
	r.rows("1")
	r.src.Acknowledge("1")
	eventually(t, "the log is deleted", func() bool { return ask[int](t, d, "SELECT count(*) FROM sluicebox_log_relay") == 0 })
	conn, err := d.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // back to the pool
	version := func() (n int) {
		if err := conn.QueryRowContext(t.Context(), "PRAGMA data_version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, used := version(), cpu(t)
	const idle = 5 * time.Second
	select {
	case b := <-r.out:
		t.Errorf("a batch came: %+v", b)
	case <-time.After(idle): // the idle time itself
	}
	spent := cpu(t) - used
	t.Logf("idle for %s: %s of CPU, %.3f %% of a core", idle, spent, 100*spent.Seconds()/idle.Seconds())
	if spent > idle/50 {
		t.Errorf("an idle source took %s of CPU", spent)
	}
	if version() != before {
		t.Error("an idle source writes")
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkDrain captures, claims and settles rows in batches of 100, while the acknowledged
// log is deleted.
func BenchmarkDrain(b *testing.B) {
	const n = 20_000
	for b.Loop() {
		b.StopTimer()
		d := newDatabase(b)
		src := newSource(b, d.config())
		o := open(b, d, src, store.Checkpoint{})
		o.View.Close()
		d.exec(b, `WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < ?)
			INSERT INTO outbox_events (id, message_group, payload) SELECT printf('%013d', i), i % 1000, printf('%300d', i) FROM c`, n)
		if err := d.views.Install(b.Context()); err != nil {
			b.Fatal(err)
		}
		epoch, err := d.views.AcquireLeadership(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		r := run(b, src, o.From)
		for done := 0; done < n; {
			var batch capture.Batch
			select {
			case batch = <-r.out:
			case err := <-r.done:
				b.Fatal(err)
			}
			for part := range slices.Chunk(batch.Items, 100) {
				claims, outcomes := make([]store.ClaimRow, len(part)), make([]store.Outcome, len(part))
				at := time.Now()
				for i := range part {
					claims[i] = store.ClaimRow{Ref: part[i].Ref}
					outcomes[i] = store.Outcome{Ref: part[i].Ref, Status: store.Completed, At: at}
				}
				answers, err := d.views.Claim(b.Context(), epoch, at, claims)
				if err != nil || answers[0].Result != store.Claimed {
					b.Fatal(answers, err)
				}
				if _, err := d.views.Settle(b.Context(), epoch, outcomes); err != nil {
					b.Fatal(err)
				}
				done += len(part)
			}
			r.src.Acknowledge(batch.Position)
		}
		b.StopTimer()
		r.close()
		b.StartTimer()
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
