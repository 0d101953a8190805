package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// readerEvery is how often a tap looks whether its output is still read.
const readerEvery = time.Second

// errUnread ends a tap whose output nobody reads any more.
var errUnread = errors.New("nobody reads what is shown")

// whileRead returns a context that ends with errUnread once nobody reads an output
// any more: a tap would else notice at the next row, and the database keep its log
// for it. What is returned besides ends the watch and waits for it.
func whileRead(ctx context.Context, out io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f, ok := out.(*os.File)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(readerEvery)
		defer tick.Stop()
		for !unread(f) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errUnread)
	}()
	return ctx, func() { cancel(nil); <-done }
}
