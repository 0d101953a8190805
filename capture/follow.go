package capture

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// Bounds of the backoff between two connection attempts.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Resumer is a source whose runs continue where the previous run ended.
type Resumer interface {
	Source
	// Resume returns the state that Run consults at its start and updates after each send.
	Resume() *Resume
}

// Observer receives the connection events of a source. Its methods must return at once.
type Observer interface {
	// Connected is called when the source reads the log.
	Connected()
	// Disconnected is called when the connection is lost. The source reconnects after wait.
	Disconnected(err error, wait time.Duration)
}

// Follow runs a source from a position and runs it again whenever its connection is lost.
// The backoff starts at 50 ms, doubles up to 5 s, and is shortened by a random jitter of up
// to 20 %. A run that sent something new resets it to 50 ms. No row is sent twice. Run sends
// directly to out, so Follow adds no cost per row.
//
// It returns only when the context ends (its error), or with a *LostError, a
// *store.SetupError or store.ErrInterrupted.
func Follow(ctx context.Context, src Resumer, from store.Position, out chan<- Batch, obs Observer) error {
	resume := src.Resume()
	resume.connected = obs.Connected
	defer func() { resume.connected = nil }()
	reconnect := backoff.Doubling{Min: minBackoff, Max: maxBackoff}
	for {
		err := src.Run(ctx, Span{From: from}, out)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if IsFinal(err) {
			return err
		}
		if resume.progress {
			reconnect.Reset()
		}
		wait := reconnect.Next()
		pause := wait - rand.N(wait/5)
		obs.Disconnected(err, pause)
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// IsFinal reports whether running again cannot fix an error of Run or ReadRange.
func IsFinal(err error) bool {
	var lost *LostError
	var other *OriginError
	var setup *store.SetupError
	return errors.As(err, &lost) || errors.As(err, &other) || errors.As(err, &setup) || errors.Is(err, store.ErrInterrupted)
}
