package capture

import "github.com/sluicebox/sluicebox/store"

// Resume remembers what a source has sent, so that a run after a lost
// connection goes on exactly there. Every source holds one, whose zero value is
// ready, and each Run asks it before and tells it after every send: so nothing
// stands between the source and the receiver of its batches.
//
// A run begins after the last position that was sent. What a transaction sent
// in part already brought is dropped by count: a log brings the same rows in
// the same order again. That takes one thing of a source: the batch that ends a
// transaction with rows holds at least one of them, so that it differs from a
// mere position.
//
// It belongs to the goroutine of Run.
type Resume struct {
	// MaxPayload, if set before Follow, is the largest payload that is carried, in
	// bytes. A longer one is left in its table, and the claim reads it: the batches that
	// wait for a receiver would hold it. 0 is no bound.
	MaxPayload int

	last      store.Position // everything at or below it was sent
	rows      int            // rows sent of the transaction after last
	skip      int            // of those, how many this run has yet to drop
	progress  bool           // this run sent something new
	connected func()
}

// Reset forgets everything: Open found another place to go on from.
func (r *Resume) Reset(from store.Position) { r.ResetPartial(from, 0) }

// ResetPartial forgets everything: rows of the transaction after a position were sent
// before.
func (r *Resume) ResetPartial(from store.Position, rows int) {
	r.last, r.rows, r.skip = from, rows, 0
}

// Start begins a run at its span's From and returns the position to run from:
// From, or the last position sent if that is later. The run must leave out
// every transaction at or below it.
func (r *Resume) Start(src Source, from store.Position) store.Position {
	if src.Compare(from, r.last) > 0 {
		r.Reset(from)
	}
	r.skip, r.progress = r.rows, false
	return r.last
}

// Connected says that the log is being read.
func (r *Resume) Connected() {
	if r.connected != nil {
		r.connected()
	}
}

// DropLargePayload leaves the payload of a row out if it is too large.
func (r *Resume) DropLargePayload(it *store.Item) {
	if r.MaxPayload > 0 && len(it.Payload) > r.MaxPayload {
		it.Payload = nil
	}
}

// Trim takes out of a batch the rows that an earlier run sent, and reports
// whether anything is left to send.
func (r *Resume) Trim(b *Batch) bool {
	drop := min(r.skip, len(b.Items))
	b.Items = b.Items[drop:]
	r.skip -= drop
	if r.rows > 0 && drop == 0 && len(b.Items) == 0 {
		b.Position = "" // none is due between the parts of a transaction
	}
	return len(b.Items) > 0 || len(b.Marks) > 0 || b.Position != ""
}

// Sent records that a batch of n rows ending at a position was received.
func (r *Resume) Sent(n int, position store.Position) {
	r.progress = true
	if position == "" {
		r.rows += n
		return
	}
	r.last, r.rows, r.skip = position, 0, 0
}

// Last returns the last position sent, or where the first run began.
func (r *Resume) Last() store.Position { return r.last }

// MidTransaction reports whether a transaction was sent in part.
func (r *Resume) MidTransaction() bool { return r.rows > 0 }
