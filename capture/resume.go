package capture

import "github.com/sluicebox/sluicebox/store"

// Resume records the last batch that a source sent, so that the next run continues exactly
// after it. Every source holds one; the zero value is ready. Run consults it at its start
// and updates it after each send, so no goroutine is needed between the source and the
// receiver of its batches.
//
// A run begins after the last position that was sent. If the previous run sent a transaction
// in part, Resume drops as many of its rows as were sent, because a log returns the same
// rows in the same order. This requires that the batch that ends a transaction with rows
// contains at least one of them. Otherwise it would look like a position without
// rows.
//
// Resume belongs to the goroutine of Run.
type Resume struct {
	// MaxPayload, if set before Follow, is the largest payload in bytes that a batch
	// carries. A larger payload stays in its table and the claim reads it, because batches
	// that wait for a receiver would hold it in memory. 0 is no limit. A row of a layout that
	// is LogOnly keeps its payload, because no claim reads it.
	MaxPayload int

	// SeparatePositions, if set before Follow, gives the rows of each position a batch of their own, for
	// a reader that recognises repeated rows by the ends of batches. The source of a log with a position
	// for each row would otherwise end its batches anywhere. A source that cannot separate them ends with a
	// *store.SetupError.
	SeparatePositions bool

	last      store.Position // every transaction at or below it was sent
	rows      int            // rows sent of the transaction after last
	skip      int            // rows that this run has yet to drop, of the rows above
	progress  bool           // this run sent something new
	connected func()
}

// RefuseSeparate returns the error of a source that cannot separate positions, if it has to.
func (r *Resume) RefuseSeparate(log string) error {
	if !r.SeparatePositions {
		return nil
	}
	return &store.SetupError{
		Problem: "read " + log + ": rows that are gone leave no position in it, so a later reader could not recognise the rows that it repeats",
		Remedy:  "relay these tables without Kafka",
	}
}

// Reset drops the recorded state. The source calls it when Open found another position to
// start from.
func (r *Resume) Reset(from store.Position) { r.ResetPartial(from, 0) }

// ResetPartial is Reset for a position after which some rows of a transaction were already
// sent.
func (r *Resume) ResetPartial(from store.Position, rows int) {
	r.last, r.rows, r.skip = from, rows, 0
}

// Start begins a run at its span's From. It returns the position to run from: From, or the
// last position sent if that is later. The run must leave out every transaction at or below
// it.
func (r *Resume) Start(src Source, from store.Position) store.Position {
	if src.Compare(from, r.last) > 0 {
		r.Reset(from)
	}
	r.skip, r.progress = r.rows, false
	return r.last
}

// Connected reports that the source reads the log.
func (r *Resume) Connected() {
	if r.connected != nil {
		r.connected()
	}
}

// DropLargeContent removes the content of a row if its payload is larger than MaxPayload and a
// claim can read it. The attributes stay if the outbox needs them; see store.Outbox.KeepsAttributes.
func (r *Resume) DropLargeContent(it *store.Item, o *store.Outbox) {
	if r.MaxPayload <= 0 || len(it.Payload) <= r.MaxPayload || o.Layout.LogOnly() {
		return
	}
	attributes := it.Attributes
	if it.DropContent(); o.KeepsAttributes() {
		it.Attributes = attributes
	}
}

// Trim removes the rows that an earlier run sent from a batch. It reports whether anything
// is left to send.
func (r *Resume) Trim(b *Batch) bool {
	drop := min(r.skip, len(b.Items))
	b.Items = b.Items[drop:]
	r.skip -= drop
	if r.rows > 0 && drop == 0 && len(b.Items) == 0 {
		b.Position = "" // no position may fall between the parts of a transaction
	}
	return len(b.Items) > 0 || len(b.Changes) > 0 || len(b.Marks) > 0 || b.Position != ""
}

// Sent records that the receiver took a batch of n rows ending at a position.
func (r *Resume) Sent(n int, position store.Position) {
	r.progress = true
	if position == "" {
		r.rows += n
		return
	}
	r.last, r.rows, r.skip = position, 0, 0
}

// Last returns the last position sent, or the position where the first run began.
func (r *Resume) Last() store.Position { return r.last }

// MidTransaction reports whether the last transaction was sent in part.
func (r *Resume) MidTransaction() bool { return r.rows > 0 }
