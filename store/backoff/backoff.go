// Package backoff waits between the attempts of a call that may fail for long.
package backoff

import (
	"context"
	"time"
)

// Doubling is a wait that starts at Min, doubles with each attempt and ends at Max. Its
// methods belong to one goroutine.
type Doubling struct {
	Min, Max time.Duration

	next time.Duration // 0 is Min
}

// Next returns the wait before the next attempt.
func (d *Doubling) Next() time.Duration {
	wait := max(d.next, d.Min)
	d.next = min(2*wait, d.Max)
	return wait
}

// Reset starts again at Min, for example because an attempt succeeded.
func (d *Doubling) Reset() { d.next = 0 }

// Wait sleeps for Next. It returns the context's error if the context ends first.
func (d *Doubling) Wait(ctx context.Context) error { return Sleep(ctx, d.Next()) }

// Sleep waits for a time. It returns the context's error if the context ends first.
//
// Without a time it needs no timer. The goroutine that reads a timer which is due at once also runs it, and two such
// goroutines in one synctest bubble crash the race detector (Go 1.26, runtime.unlockAndRun).
func Sleep(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
