package capture

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Bounds of the wait before a lost connection is taken up again.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Resumer is a source whose runs go on where the last one ended.
type Resumer interface {
	Source
	// Resume returns what Run asks before and tells after every send.
	Resume() *Resume
}

// Observer is told how a source fares. It must return at once.
type Observer interface {
	// Connected: the source reads the log.
	Connected()
	// Disconnected: it no longer does, and tries again after the wait.
	Disconnected(err error, wait time.Duration)
}

// Follow runs a source from a position and runs it again whenever its
// connection is lost: after 50 ms, then after twice as long each time up to 5 s,
// shortened at random by up to a fifth, and from 50 ms again once a run sent
// something new. No row is sent twice. Run sends straight to out, so following
// costs a row nothing.
//
// It returns only when the context ends (its error), or with a *LostError, a
// *store.SetupError or store.ErrInterrupted.
func Follow(ctx context.Context, src Resumer, from store.Position, out chan<- Batch, obs Observer) error {
	resume := src.Resume()
	resume.connected = obs.Connected
	defer func() { resume.connected = nil }()
	for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
		err := src.Run(ctx, Span{From: from}, out)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if IsFinal(err) {
			return err
		}
		if resume.progress {
			wait = minBackoff
		}
		pause := wait - rand.N(wait/5)
		obs.Disconnected(err, pause)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// IsFinal reports whether running again cannot mend an error of Run or Again.
func IsFinal(err error) bool {
	var lost *LostError
	var other *OriginError
	var setup *store.SetupError
	return errors.As(err, &lost) || errors.As(err, &other) || errors.As(err, &setup) || errors.Is(err, store.ErrInterrupted)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
