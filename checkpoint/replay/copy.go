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
	// pageRows and pageBytes bound what is copied in one transaction.
	pageRows, pageBytes = 1000, 4 << 20
	// segmentBytes is how much payload is copied before it is played, where the server
	// does not bound its log more.
	segmentBytes = 256 << 20
	// segmentRows bounds what small rows take beside their payload.
	segmentRows = 1 << 20
	// moveRows and moveAfter are after how many rows and how long the cursor moves on
	// though no row was chosen.
	moveRows, moveAfter = 100_000, 5 * time.Second
)

// copyLog copies rows out of the log, up to the job's end or to that of a segment.
func (r *run) copyLog(ctx context.Context) error {
	at, err := r.place(ctx)
	if err != nil {
		return err
	}
	c := &copier{run: r, cursor: at.cursor, wrote: time.Now(), limit: r.pageOf(cmp.Or(r.pageRows, pageRows))}
	if c.most, err = r.segment(ctx); err != nil {
		return err
	}
	err = r.readLog(ctx, &at, func(ctx context.Context, b *capture.Batch) error { return c.take(ctx, b) })
	if errors.Is(err, errSegment) {
		return nil
	}
	if err != nil {
		return err
	}
	c.cursor = store.ReplayCursor{Position: r.Until.Position}
	return c.flush(ctx)
}

// readLog reads the log from a place up to the job's end, and hands over what comes. It
// ends with the first error of take, and where the log that is kept for the place is
// given up.
func (r *run) readLog(ctx context.Context, at *logPlace, take func(context.Context, *capture.Batch) error) error {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.reader.reads(at.name, func(why error) { stop(fail("%v; the job was reading it", why)) })
	defer r.reader.reads("", nil)
	err := r.read(reading, at.Place, func(b *capture.Batch) error { return take(reading, b) })
	if end := new(endError); errors.As(context.Cause(reading), &end) {
		return end
	}
	return lostOnTheWay(err)
}

// lostOnTheWay makes the end of a job of an error that reading again does not mend.
func lostOnTheWay(err error) error {
	if err != nil && isFinal(err) {
		return fail("the rows that are left cannot be read: %v; the job began on the log, so it is not finished from the table", err)
	}
	return err
}

// read reads the log once more from a place up to the job's end, and hands over what
// comes. It ends with the first error of take.
func (r *run) read(ctx context.Context, at capture.Place, take func(*capture.Batch) error) error {
	src, err := r.Log.Past()
	if err != nil {
		return err
	}
	defer src.Close()
	reading, stop := context.WithCancel(ctx)
	out, ended := make(chan capture.Batch), make(chan error, 1)
	go func() { ended <- src.Again(reading, at, r.Until.Position, out) }()
	var failed error
	for {
		select {
		case b := <-out:
			if failed != nil {
				continue // it is about to end
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

// logPlace is where the job goes on in the log.
type logPlace struct {
	capture.Place
	cursor store.ReplayCursor
	name   string // of the checkpoint whose log is read, "" if none is kept
}

// place returns where the job goes on in the log.
func (r *run) place(ctx context.Context) (at logPlace, err error) {
	if r.Log == nil || r.Log.Past == nil {
		return at, fail("the log cannot be read any more, as the relay polls; the job began on the log, so it is not finished from the table")
	}
	if at.Place, _, at.name, err = r.from(ctx); err != nil {
		if end := new(endError); errors.As(err, &end) {
			err = fail("%s", end.why) // it was there when the job began
		}
		return at, lostOnTheWay(err)
	}
	if at.Position != "" && r.Log.Compare(at.Position, r.Until.Position) > 0 {
		return at, fail("checkpoint %s was deleted before its rows were read, and made anew", r.spec.From)
	}
	if r.Cursor.Position != "" {
		at.Checkpoint = store.Checkpoint{Origin: r.Until.Origin, Position: r.Cursor.Position}
		at.Skip = r.Cursor.Skip
	}
	at.cursor = store.ReplayCursor{Position: at.Position, Skip: at.Skip}
	return at, nil
}

// segment returns how much payload is copied before it is played: the log must not run
// away meanwhile.
func (r *run) segment(ctx context.Context) (bytes int64, err error) {
	kept, err := r.Log.Retained(ctx)
	if err != nil {
		return 0, err
	}
	if bytes = segmentBytes; kept.Limit > 0 {
		bytes = min(bytes, max(pageBytes, kept.Limit/8))
	}
	return bytes, nil
}

// errSegment says that enough was copied for now.
var errSegment = errors.New("the segment is full")

// copier copies rows of the log into the job.
type copier struct {
	*run
	// cursor is what was read, up to the row.
	cursor store.ReplayCursor
	page   []store.ReplayRow
	limit  int   // of its rows
	bytes  int64 // of the page
	read   int   // rows since the last write
	wrote  time.Time
	// rows and size are those of the segment, most is its bound.
	rows       int
	size, most int64
}

// take takes what comes from the log.
func (c *copier) take(ctx context.Context, b *capture.Batch) error {
	for i := range b.Items {
		it := &b.Items[i]
		c.read++
		c.cursor.Skip++
		if !c.wants(it) {
			continue
		}
		c.page = append(c.page, store.ReplayRow{N: c.Total + int64(len(c.page)) + 1, Item: *it})
		if c.bytes += int64(len(it.Payload)); c.full() {
			if err := c.flush(ctx); err != nil {
				return err
			}
		}
	}
	if b.Position != "" {
		c.cursor = store.ReplayCursor{Position: b.Position}
	}
	if c.read >= moveRows || c.read > 0 && time.Since(c.wrote) >= moveAfter {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	// Before the first position nothing says where to go on.
	if (c.size >= c.most || c.rows >= cmp.Or(c.segmentRows, segmentRows)) && c.Cursor.Position != "" {
		return errSegment
	}
	return nil
}

func (c *copier) full() bool {
	return len(c.page) >= c.limit || c.bytes >= pageBytes
}

// flush writes the page and the cursor, and makes way for live rows.
func (c *copier) flush(ctx context.Context) error {
	if err := c.Store.CopyRows(ctx, c.Epoch, c.ID, c.page, c.cursor); err != nil {
		return err
	}
	c.Cursor = c.cursor
	c.Total += int64(len(c.page))
	c.rows += len(c.page)
	c.size += c.bytes
	full := c.full()
	c.page, c.bytes, c.read = c.page[:0], 0, 0
	c.limit = c.pageOf(cmp.Or(c.pageRows, pageRows))
	defer func() { c.wrote = time.Now() }()
	if !full {
		return nil
	}
	return c.makeWay(ctx, c.wrote)
}

// wants reports whether a row of the log is one of the job's.
func (r *run) wants(it *store.Item) bool {
	switch at := it.Committed; {
	case !r.spec.Since.IsZero() && isBefore(at, r.spec.Since):
		return false
	case !r.spec.Until.IsZero() && !at.Before(r.spec.Until):
		return false
	}
	return r.spec.Match(it)
}

// isBefore reports whether a row's time is before a moment. A log may tell whole seconds
// only, as that of MariaDB does, and so may a column: a time without a fraction counts up
// to the end of its second, so that rather some rows more are sent than one too few.
func isBefore(at, moment time.Time) bool {
	if at.Nanosecond() == 0 {
		moment = moment.Truncate(time.Second)
	}
	return at.Before(moment)
}
