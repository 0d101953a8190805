// Package redis appends rows to streams of a Redis server, or of one that speaks its protocol.
//
// # The message
//
// XADD STREAM * id ID data PAYLOAD, and a field for each header; see package event. Consumers drop
// duplicates by id.
//
// # Order
//
// A request has messages of many lanes, in one pipeline on one connection. The server executes a
// pipeline in order, but it goes on behind a command that it refused, and so does EXEC. A refused
// message would be stored behind its successors. Therefore several messages of one lane are one
// script, which stops at its first failure and cannot be divided: the mode is [sink.Prefix]. One
// message of a lane is an XADD, which needs no permission for scripts.
//
// The client never repeats a command. A request whose answer was lost may still be executed, even
// after its rows have been sent again. A stream then has them twice, the first time in order,
// because no row is sent before those ahead of it are acknowledged.
//
// # Classes
//
//   - Rejected: larger than the server accepts (512 MiB, or its proto-max-bulk-len).
//   - Unavailable: no connection or no answer; the server loads its data (LOADING), is out of memory
//     (OOM), a replica (READONLY), busy (BUSY), has no replica (NOREPLICAS), no disk (MISCONF) or no
//     connection left. A message above 1 MiB is suspect if the server closes the connection on it, and then
//     answers: the message may exceed proto-max-bulk-len.
//   - Misconfigured: the credentials or the permissions (NOAUTH, WRONGPASS, NOPERM), TLS, a key
//     that is no stream (WRONGTYPE), a node of a cluster (MOVED, ASK, CROSSSLOT), a database or a
//     command that does not exist.
//   - Refused: any other error.
package redis
