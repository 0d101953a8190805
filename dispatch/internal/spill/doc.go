// Package spill decides which rows of the lanes leave memory and which are read back. It is
// pure: it starts no goroutine, reads no clock and does no I/O. The caller writes, deletes
// and reads the spilled rows of the store, one statement at a time.
//
// The rows of a lane in memory are the first undelivered rows of its group. Spilled rows
// lie behind them in the store, in seq order. New rows from the log are spilled too, until
// the lane has no spilled rows left. A spilled row may have a copy in memory:
//
//	Copy     Event                                                     To
//	none     Append, Shrink or ForLog: the row is to be spilled        writing
//	none     Reloads.Add finds the copy of a requeued row              stored
//	writing  Written: the spill is durable                             stored
//	writing  Written: the store refuses the row                        refused
//	writing  the spill is canceled, because the lane has no spilled    none
//	         rows left: Reloads.Add; or at the end: End
//	refused  RetryUnspillable, or the row leaves memory                none
//	stored   Settled: the row's outcome is written and deletes it      none
//
// For example, the outcome of a row waits while its copy is being written, because the copy
// must not outlive the row.
//
// A lane with all its rows in the store is a spilled lane, of which only the hash and the
// number of rows are kept:
//
//	Lane       Event                                                   To
//	in memory  Shrink: its rows leave memory                           shrinking
//	shrinking  its rows are spilled and their claims given back        in memory, or spilled
//	                                                                   if it keeps no row
//	spilled    Reloads.Next selects it                                 being read
//	being read Reloads.Add: rows came                                  in memory
//	being read Reloads.Add: no row came                                forgotten
//
// Reloads take lanes with too few rows in memory first, then spilled lanes of each kind in
// turn. They fill at most half a buffer.
package spill
