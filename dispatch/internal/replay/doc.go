// Package replay counts the rows of replay jobs in memory, and holds live lanes for jobs.
// It is pure: it starts no goroutine, reads no clock and sends nothing.
//
// A row of a job is in memory from Enter to Leave:
//
//	Event                                          Row
//	Enter: the job brings it                       in a replay lane
//	it is accepted or refused for good: Finish     waits to be recorded
//	Next: one batch of one job at a time           being recorded
//	Recorded, then Leave                           recorded, out of memory
//	Withdraw, then Leave once it is in no request  out of memory; the store keeps it
//
// A job without rows in memory is forgotten. Withdrawing ends when the job opens again: for
// example, a job that is paused withdraws its rows, and opens again when it continues.
//
// Before a job reads which rows of a group were delivered, everything of its lane in flight
// must end, because a row whose COMPLETED is not yet written looks undelivered. Rows that
// have their own lanes keep moving, so only those in flight at the hold count.
package replay
