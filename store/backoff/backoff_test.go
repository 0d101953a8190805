package backoff_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store/backoff"
)

func TestDoublingEndsAtMax(t *testing.T) {
	d := backoff.Doubling{Min: 20, Max: 100}
	for range 2 {
		var got []time.Duration
		for range 5 {
			got = append(got, d.Next())
		}
		if want := []time.Duration{20, 40, 80, 100, 100}; !slices.Equal(got, want) {
			t.Errorf("waits are %v, want %v", got, want)
		}
		d.Reset()
	}
}

func TestWaitSleepsForNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := backoff.Doubling{Min: time.Second, Max: 5 * time.Second}
		began := time.Now()
		for range 3 {
			if err := d.Wait(t.Context()); err != nil {
				t.Fatalf("Wait: %v", err)
			}
		}
		if got, want := time.Since(began), 7*time.Second; got != want {
			t.Errorf("three waits took %s, want %s", got, want)
		}
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sleep returned %v, want %v", err, context.DeadlineExceeded)
		}
		if got, want := time.Since(began), time.Second; got != want {
			t.Errorf("Sleep took %s, want %s", got, want)
		}
	})
}
