// Package poll reads outboxes by reading their tables again and again, where the
// log cannot be had. It works on any store.
//
// It gives no commit order and no position: rows come in the layout's order-by,
// and what was read but not settled is read again. The relay says which rows its
// lanes hold, so that they are left out; the claim tells the rest apart. A
// marker comes back after the first read that began after it was asked for, and
// what had committed before that is in the read, but for the rows of lanes that
// are left out.
//
// # What is left out
//
// Rows that nobody can take now stay where they are: those of lanes that stand
// still, however many, and those of an outbox whose buffer is full. So neither a
// blocked group nor a dead receiver keeps the rows of others from being read. The
// relay is asked again and again, in memory, whether that has changed.
//
// # How often
//
// Each outbox has its turn by itself: at once again after a full batch, after
// the interval otherwise, and less and less often while its reads find nothing. A
// row, a marker, Wake, and a lane that moves again end that. A read is followed by
// a pause that is no shorter than it was itself, so that a large table costs the
// database half a session at most.
package poll
