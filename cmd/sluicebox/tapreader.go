package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// readerCheckInterval is how often a tap checks whether its output is still open.
const readerCheckInterval = time.Second

// errOutputClosed ends a tap whose output was closed.
var errOutputClosed = errors.New("output closed")

// withOpenOutput returns a context that ends with errOutputClosed once the reader of the
// output is gone. Otherwise the tap would notice only at the next row, and the database
// would retain log until then. The returned function stops the check and waits for it.
func withOpenOutput(ctx context.Context, out io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f, ok := out.(*os.File)
	if !ok {
		return ctx, func() { cancel(nil) }
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(readerCheckInterval)
		defer tick.Stop()
		for !isOutputClosed(f) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errOutputClosed)
	}()
	return ctx, func() { cancel(nil); <-done }
}
