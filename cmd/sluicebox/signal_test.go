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
		code    int
	}{
		{"clean", []os.Signal{syscall.SIGTERM}, 0},
		{"clean", []os.Signal{syscall.SIGINT}, 0},
		{"cancelled", []os.Signal{syscall.SIGTERM}, 0},
		{"dirty", []os.Signal{syscall.SIGTERM}, 1},
		{"stuck", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, 1},
		{"stuck", []os.Signal{syscall.SIGINT, syscall.SIGTERM}, 1},
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
