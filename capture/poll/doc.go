// Package poll captures outbox rows by polling their tables. It serves databases whose log
// cannot be read, and works with any store.
//
// It provides no commit order and no positions: rows come in the layout's order-by, and a
// row that is read but not settled is read again. The relay reports the rows that its lanes
// hold, so that a read excludes them; the claim sorts out the remaining duplicates. A marker
// comes back after the first read that began after the request for it. That read contains
// every row committed before the request, except rows of excluded lanes.
//
// # Excluded rows
//
// Rows that the relay cannot accept at present stay in their tables:
//   - rows of lanes that do not move, for example blocked ones, however many there are,
//   - rows of an outbox whose buffer is full.
//
// So neither a blocked group nor a dead receiver delays the rows of other groups. The source
// rechecks both conditions every 50 ms, in memory.
//
// # Schedule
//
// Each outbox has its own schedule. It is read again at once after a full batch, otherwise
// after the interval. The interval grows while reads find nothing. A row, a marker, Wake, or
// a lane that moves again resets it. The pause after a read is at least as long as the read
// took, so that a large table occupies at most half a database session.
package poll
