// Package poll reads outboxes by reading their tables again and again, where the
// log cannot be had. It works on any store.
//
// It gives no commit order and no position: rows come in the layout's order-by,
// and what was read but not settled is read again. The relay says which rows its
// lanes hold, so that they are left out; the claim tells the rest apart. A
// marker comes back after the first read that began after it was asked for, and
// what had committed before that is in the read.
package poll
