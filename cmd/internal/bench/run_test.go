package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// A benchmark that is interrupted says so, also before it measures: here while it connects.
func TestInterruptedWhileItConnects(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"postgres", "mysql", "mongodb"} {
		ctx, interrupt := context.WithCancel(t.Context())
		accepted := make(chan error, 1)
		go func() {
			conn, err := silent.Accept()
			interrupt()
			if err == nil {
				t.Cleanup(func() { _ = conn.Close() })
			}
			accepted <- err
		}()
		source := config.URL(scheme + "://bench@" + silent.Addr().String() + "/bench")
		if err := Run(ctx, Options{Source: source, Scenario: "latency"}, Environment{Stdout: io.Discard, Stderr: io.Discard}); !errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
			t.Errorf("%s: it ended with %v, want %v", scheme, err, errInterrupted)
		}
		if err := <-accepted; err != nil {
			t.Error(err)
		}
	}
	if err := silent.Close(); err != nil {
		t.Error(err)
	}
}
