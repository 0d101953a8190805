package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

type counter struct{ connected, lost atomic.Int32 }

func (c *counter) Connected()                        { c.connected.Add(1) }
func (c *counter) Disconnected(error, time.Duration) { c.lost.Add(1) }

// TestServerCrash: after a crash of the server the stream continues without duplicates.
func TestServerCrash(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := newDatabase(t, srv.URL)
		src := newSource(t, d.config())
		defer src.Close()
		o := capturetest.OpenWithoutCheckpoint(t, src, d.tables())
		ctx, cancel := context.WithCancel(t.Context())
		out, done := make(chan capture.Batch), make(chan error, 1)
		var seen counter
		go func() { done <- capture.Follow(ctx, src, o.From, out, &seen) }()
		expect := func(want string) {
			t.Helper()
			timeout := time.After(testTimeout)
			for {
				select {
				case b := <-out:
					if len(b.Items) == 0 {
						continue
					}
					if b.Items[0].ID != want {
						t.Errorf("row %s, want %s", b.Items[0].ID, want)
					}
					return
				case err := <-done:
					t.Fatalf("Follow ended with %v", err)
				case <-timeout:
					t.Fatal("no row came")
				}
			}
		}
		servers.Exec(t, d.url, insert("a"))
		expect("a")
		srv.Stop("immediate")
		srv.Restart(nil)
		servers.Exec(t, d.url, insert("b"))
		expect("b")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Follow ended with %v", err)
		}
		if seen.lost.Load() == 0 || seen.connected.Load() != 2 {
			t.Errorf("%d losses and %d connections were reported", seen.lost.Load(), seen.connected.Load())
		}
	})
}
