package replay

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// pageRows and pageBytes bound one transaction of copied rows.
	pageRows, pageBytes = 1000, 4 << 20

	// segmentBytes is the maximum payload that is copied before it is played, if the
	// server does not bound its log more tightly.
	segmentBytes = 256 << 20

	// segmentRows bounds the memory that small rows take besides their payload.
	segmentRows = 1 << 20

	// The cursor moves after cursorMoveRows rows or cursorMoveInterval, even if no
	// row matched.
	cursorMoveRows, cursorMoveInterval = 100_000, 5 * time.Second
)

// copyLog copies rows from the log, up to the end of the job or of a segment.
func (r *jobRun) copyLog(ctx context.Context) error {
	at, err := r.logPosition(ctx)
	if err != nil {
		return err
	}

	c := &copier{jobRun: r, cursor: at.cursor, flushedAt: time.Now(), limit: r.pageSize(r.limits.pageRows)}
	if c.maxBytes, err = r.segmentLimit(ctx); err != nil {
		return err
	}

	err = r.readLog(ctx, &at, func(ctx context.Context, b *capture.Batch) error { return c.copyBatch(ctx, b) })
	if errors.Is(err, errSegmentFull) {
		return nil
	}
	if err != nil {
		return err
	}

	c.cursor = store.ReplayCursor{Position: r.Until.Position}
	return c.flush(ctx)
}

// readLog reads the log from a position to the end of the job and calls take for each
// batch. It returns the first error of take. It fails if the log that is retained for
// the position is released.
func (r *jobRun) readLog(ctx context.Context, at *logPlace, take func(context.Context, *capture.Batch) error) error {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.activeReader.setReading(at.name, func(cause error) { stop(failf("%v; the job was reading this log", cause)) })
	defer r.activeReader.setReading("", nil)
	err := r.readRange(reading, at.StartPoint, func(b *capture.Batch) error { return take(reading, b) })
	if end := new(endError); errors.As(context.Cause(reading), &end) {
		return end
	}
	return finalReadError(err)
}

// finalReadError returns an error that ends the job if reading again does not help.
func finalReadError(err error) error {
	if err != nil && isFinal(err) {
		return failf("cannot read the remaining rows: %v; a job that started on the log does not continue from the table: start another one with --source table", err)
	}
	return err
}

// readRange reads the log from a position to the end of the job and calls take for
// each batch. It returns the first error of take.
func (r *jobRun) readRange(ctx context.Context, at capture.StartPoint, take func(*capture.Batch) error) error {
	src, err := r.Log.OpenHistory()
	if err != nil {
		return err
	}
	defer src.Close()
	reading, stop := context.WithCancel(ctx)
	out, ended := make(chan capture.Batch), make(chan error, 1)
	go func() { ended <- src.ReadRange(reading, at, r.Until.Position, out) }()
	var failed error
	for {
		select {
		case b := <-out:
			if failed != nil {
				continue // discard batches until the source stops
			}
			if failed = take(&b); failed != nil {
				stop()
			}
		case err := <-ended:
			stop()
			return cmp.Or(failed, err)
		}
	}
}

// logPosition returns the position in the log at which the job continues.
func (r *jobRun) logPosition(ctx context.Context) (at logPlace, err error) {
	if r.Log == nil || r.Log.OpenHistory == nil {
		return at, failf("log not available while the relay polls; a job that started on the log does not continue from the table")
	}
	if at, err = r.startPlace(ctx); err != nil {
		if end := new(endError); errors.As(err, &end) {
			err = failf("%s", end.reason) // it existed when the job started
		}
		return at, finalReadError(err)
	}

	if at.Position != "" && r.Log.Compare(at.Position, r.Until.Position) > 0 {
		return at, failf("checkpoint %s was deleted and created again before its rows were read", r.spec.From)
	}
	if r.Cursor.Position != "" {
		at.Checkpoint = store.Checkpoint{Origin: r.Until.Origin, Position: r.Cursor.Position}
		at.Skip = r.Cursor.Skip
	}

	at.cursor = store.ReplayCursor{Position: at.Position, Skip: at.Skip}
	return at, nil
}

// segmentLimit returns the maximum payload that is copied before it is played. A
// smaller segment keeps the retained log within its limit.
func (r *jobRun) segmentLimit(ctx context.Context) (bytes int64, err error) {
	kept, err := r.Log.Retained(ctx)
	if err != nil {
		return 0, err
	}
	if bytes = segmentBytes; kept.Limit > 0 {
		bytes = min(bytes, max(pageBytes, kept.Limit/8))
	}
	return bytes, nil
}

// errSegmentFull stops readLog at the end of a segment.
var errSegmentFull = errors.New("segment limit reached")

// copier copies rows of the log into the job.
type copier struct {
	*jobRun

	// cursor is the position that was read, to the row.
	cursor    store.ReplayCursor
	page      []store.ReplayRow
	limit     int   // of rows in the page
	bytes     int64 // of the page
	rowsRead  int   // rows since the last flush
	flushedAt time.Time

	// rows and size are totals of the segment, maxBytes is its limit.
	rows           int
	size, maxBytes int64
}

// copyBatch copies the matching rows of a batch.
func (c *copier) copyBatch(ctx context.Context, b *capture.Batch) error {
	for i := range b.Items {
		it := &b.Items[i]
		c.rowsRead++
		c.cursor.Skip++
		for row := range c.rowsOf(it) {
			if c.matches(row) {
				c.page = append(c.page, store.ReplayRow{N: c.Total + int64(len(c.page)) + 1, Item: *row})
				c.bytes += int64(len(row.Payload))
			}
		}
		if c.full() {
			if err := c.flush(ctx); err != nil {
				return err
			}
		}
	}

	if b.Position != "" {
		c.cursor = store.ReplayCursor{Position: b.Position}
	}
	if c.rowsRead >= cursorMoveRows || c.rowsRead > 0 && time.Since(c.flushedAt) >= cursorMoveInterval {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}

	// Before the first position there is no cursor to continue from.
	if (c.size >= c.maxBytes || c.rows >= c.limits.segmentRows) && c.Cursor.Position != "" {
		return errSegmentFull
	}
	return nil
}

func (c *copier) full() bool {
	return len(c.page) >= c.limit || c.bytes >= pageBytes
}

// flush writes the page and the cursor. After a full page it pauses for live rows.
func (c *copier) flush(ctx context.Context) error {
	if err := c.Store.CopyRows(ctx, c.Epoch, c.ID, c.page, c.cursor); err != nil {
		return err
	}

	c.Cursor = c.cursor
	c.Total += int64(len(c.page))
	c.rows += len(c.page)
	c.size += c.bytes
	full := c.full()
	c.page, c.bytes, c.rowsRead = c.page[:0], 0, 0
	c.limit = c.pageSize(c.limits.pageRows)
	defer func() { c.flushedAt = time.Now() }()
	if !full {
		return nil
	}
	return c.throttle(ctx, c.flushedAt)
}

// matches reports whether the job's spec selects a row of the log.
func (r *jobRun) matches(it *store.Item) bool {
	switch at := it.Committed; {
	case !r.spec.Since.IsZero() && isBefore(at, r.spec.Since):
		return false
	case !r.spec.Until.IsZero() && !at.Before(r.spec.Until):
		return false
	}
	return r.spec.Match(it)
}

// isBefore reports whether a row's time is before a moment. Some logs, for example
// MariaDB's, and some columns have whole seconds only. A time without a fraction
// therefore stands for its whole second: it is better to send a few more rows than to
// miss one.
func isBefore(at, moment time.Time) bool {
	if at.Nanosecond() == 0 {
		moment = moment.Truncate(time.Second)
	}
	return at.Before(moment)
}
