// Package logfile appends rows to a file, or writes them to the standard output, one line of JSON
// for each.
//
// # Order
//
// A request is one write behind those before it, so the mode is [sink.Ordered]: the lines stand in
// the order of the messages, and a write that fails has stored some of the leading ones. A line
// that a full disk cut off ends with a line break before the next one is written, and its row is
// written again.
//
// A write does not wait for the disk unless fsync is set. Without it, rows that the system had not
// written yet are lost if the machine fails, although they count as delivered.
//
// # Rotation
//
// Before each request the sink compares the open file with the one at its path. It opens the path
// again if the file was renamed or removed, and creates it if there is none.
//
// # Classes
//
//   - Rejected: the payload cannot be a line, for example because it is not JSON.
//   - Misconfigured: the path does not exist or cannot be written to.
//   - Unavailable: the disk is full, no process reads the pipe, or the write takes longer than
//     request-timeout. It may still be written later, before all other rows.
package logfile
