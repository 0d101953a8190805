package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// readerCheckInterval is how often a tap looks whether its output is still read.
const readerCheckInterval = time.Second

// errOutputClosed ends a tap whose output nobody reads any more.
var errOutputClosed = errors.New("output closed")

// withOpenOutput returns a context that ends with errOutputClosed once nobody reads an output
// any more: a tap would else notice at the next row, and the database keep its log
// for it. What is returned besides ends the watch and waits for it.
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
