package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
)

// childVariable says what the test binary does instead of tests: end with its context
// (clean), only when killed (stuck), or with an error after its context (dirty).
const childVariable = "SLUICEBOX_TEST_CHILD"

// child is the program as main starts it, with a fake relay.
func child() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	way := os.Getenv(childVariable)
	p := program{
		stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), signals: signals, exit: os.Exit,
		relay: backend{run: func(ctx context.Context, _ app.Options) error {
			fmt.Println("running")
			<-ctx.Done()
			fmt.Println("ending")
			switch way {
			case "clean":
				return nil
			case "cancelled":
				return fmt.Errorf("drain: %w", ctx.Err())
			case "dirty":
				return io.ErrUnexpectedEOF
			}
			select {}
		}},
	}
	os.Exit(p.main(os.Args[1:]))
}

func TestSignals(t *testing.T) {
	path := file(t, good)
	tests := []struct {
		way     string
		signals []os.Signal
		between time.Duration
		code    int
	}{
		{"clean", []os.Signal{syscall.SIGTERM}, 0, 0},
		{"clean", []os.Signal{syscall.SIGINT}, 0, 0},
		{"cancelled", []os.Signal{syscall.SIGTERM}, 0, 0},
		{"dirty", []os.Signal{syscall.SIGTERM}, 0, 1},
		{"stuck", []os.Signal{syscall.SIGINT, syscall.SIGTERM}, signalEcho, 1},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.way, tt.signals), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "run", "-c", path)
			cmd.Env = append(os.Environ(), childVariable+"="+tt.way)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for i, word := range []string{"running", "ending"} {
				if !lines.Scan() || lines.Text() != word {
					t.Fatalf("the program says %q, want %q", lines.Text(), word)
				}
				if i < len(tt.signals) {
					if i > 0 {
						time.Sleep(tt.between)
					}
					if err := cmd.Process.Signal(tt.signals[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit %d, want %d", got, tt.code)
			}
		})
	}
}

// TestSignalEcho: one Ctrl-C that arrives twice does not abort a drain, and a signal of
// a user who waits no longer does, whatever came in between.
func TestSignalEcho(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after []time.Duration // of each signal behind the first
		exits int
	}{
		{"one", nil, 0},
		{"forwarded once more", []time.Duration{0}, 0},
		{"forwarded late", []time.Duration{signalEcho - time.Nanosecond}, 0},
		{"forwarded by two", []time.Duration{time.Millisecond, 20 * time.Millisecond}, 0},
		{"a second", []time.Duration{signalEcho}, 1},
		{"forwarded, then a second", []time.Duration{time.Millisecond, 2 * signalEcho}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal)
				exits := 0
				p := program{signals: signals, stderr: io.Discard, exit: func(int) { exits++ }}
				ctx, stop := p.untilSignal()
				signals <- syscall.SIGINT
				<-ctx.Done()
				first := time.Now()
				for _, after := range tt.after {
					time.Sleep(after - time.Since(first))
					signals <- syscall.SIGINT
				}
				synctest.Wait()
				if exits != tt.exits {
					t.Errorf("the process ended %d times, want %d", exits, tt.exits)
				}
				stop()
			})
		})
	}
}
