package ingest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store/outbox"
)

// Limits of a write. Rows of one request always share one, so a write may be larger by a request.
const (
	maxBatchRows  = 1000
	maxBatchBytes = 8 << 20
)

// writeTimeout limits a write. A table that is locked for longer is as good as unreachable.
const writeTimeout = 10 * time.Second

var errWriteTimeout = errors.New("no answer from the database within " + writeTimeout.String())

// submission are the rows of a request. They share a write.
type submission struct {
	rows    []outbox.Row
	written []outbox.Written
	err     error
	done    chan struct{} // closed when written or err is set
}

// bytes returns the size of the rows.
func (s *submission) bytes() (sum int) {
	for i := range s.rows {
		sum += len(s.rows[i].Payload) + s.rows[i].Attributes.Bytes()
	}
	return sum
}

// batcher joins the rows of requests that arrive while a write is in flight. It keeps their order.
type batcher struct {
	write func(ctx context.Context, rows []outbox.Row) ([]outbox.Written, error)

	mu      sync.Mutex
	waiting []*submission
	wake    chan struct{} // with room for one
}

func newBatcher(write func(ctx context.Context, rows []outbox.Row) ([]outbox.Written, error)) *batcher {
	return &batcher{write: write, wake: make(chan struct{}, 1)}
}

// submit writes rows and waits for the result, whatever becomes of the client: its rows may be on
// their way.
func (b *batcher) submit(rows []outbox.Row) ([]outbox.Written, error) {
	s := &submission{rows: rows, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, s)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	<-s.done
	return s.written, s.err
}

// run writes until the context ends. Then it fails what still waits; no submit may follow.
func (b *batcher) run(ctx context.Context) {
	for {
		batch := b.take()
		switch {
		case batch != nil:
			b.writeBatch(ctx, batch)
		case ctx.Err() != nil:
			return
		default:
			select {
			case <-b.wake:
			case <-ctx.Done():
			}
		}
	}
}

// take returns the submissions of the next write. An id that the write has already waits for the
// one after, because only a table says whether a row repeats another.
func (b *batcher) take() []*submission {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, rows, bytes := 0, 0, 0
	ids := map[string]bool{}
	for _, s := range b.waiting {
		if n > 0 && (rows+len(s.rows) > maxBatchRows || bytes+s.bytes() > maxBatchBytes || s.repeats(ids)) {
			break
		}
		for i := range s.rows {
			ids[s.rows[i].ID] = true
		}
		n, rows, bytes = n+1, rows+len(s.rows), bytes+s.bytes()
	}
	batch := b.waiting[:n:n]
	if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
		b.waiting = nil
	}
	if n == 0 {
		return nil
	}
	return batch
}

// repeats reports whether one of the ids is among ids.
func (s *submission) repeats(ids map[string]bool) bool {
	for i := range s.rows {
		if ids[s.rows[i].ID] {
			return true
		}
	}
	return false
}

// writeBatch writes the rows of a batch and answers its submissions.
func (b *batcher) writeBatch(ctx context.Context, batch []*submission) {
	var rows []outbox.Row
	for _, s := range batch {
		rows = append(rows, s.rows...)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, errWriteTimeout)
	defer cancel()
	written, err := b.write(ctx, rows)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	for _, s := range batch {
		if s.err = err; err == nil {
			s.written, written = written[:len(s.rows)], written[len(s.rows):]
		}
		close(s.done)
	}
}
