// Package dispatch delivers the rows of the outboxes: it keeps each message
// group in order, runs the groups in parallel, retries, and decides what a
// failure means for a row.
//
// # Model
//
// Each row goes into the lane of its (outbox, kind, group). A lane has at most
// one request in flight. Lanes with rows wait in a first-in-first-out queue for
// a sender; a lane's turn is one run, the rows at its head that fit one request.
// When more lanes are ready than senders are free, the runs of several lanes
// share a request. What a request carries is claimed in the store, sent, and its
// outcomes written:
//
//	idle → ready → claiming → sending → ready or idle
//	         ↑        │          └────→ writing → waiting → ready   (a failure)
//	         │        └───────────────→ waiting → ready             (not yet visible, held)
//	         └ held: blocked by a FAILED row, paused by an operator, or replayed
//
// # The core and its workers
//
// The core is a pure state machine: events go in (rows, claim answers, results,
// written outcomes, time, an operator's wishes), commands come out (requests to
// claim, requests to send, outcomes to write). It starts nothing, reads no clock
// and does no I/O. The [Dispatcher] drives it under one lock. Its workers pull
// commands when they are free, which gives natural batching without timers: a
// claim or an outcome goes out at once when none is in flight, and what arrives
// meanwhile forms the next statement.
//
// # The order
//
// A row that fails is retried before any later row of its lane. The next row
// leaves after COMPLETED is known, or after FAILED is durably written. Rows found
// outside the log are placed in front of what the log brings, but behind a run
// in flight.
//
// An outcome that comes before the store sees its row, where claims are not written,
// is written again soon. One that its lane waits for keeps it waiting.
//
// # Whose fault a failure is
//
// A request of several rows that the receiver rejects is halved until the row to
// blame stands alone: among lanes at once, in a lane one half after the other. A
// lane whose last request failed shares none. What fails for want of an answer is
// not searched: the lanes of the request go on one by one. See settle.go.
//
// A refusal counts against a row only with proof that the receiver lives: it
// accepted another request that began after this row's last failure, or it
// rejected this row alone. Without proof a refused row counts once in a while. A
// lone row on a quiet system may have proof by a request without rows: see ping.go.
// An answer that says unavailable or misconfigured never costs a row anything: a
// part of the receiver may be away, and every row that needs it would become a dead
// letter. A row that is so left unanswered for ProofWait while others are taken
// stalls its lane, with an alarm. See verdict.go.
//
// # A suspect sink
//
// Several failed requests in a row, or one misconfigured answer without proof,
// make the sink suspect: from then on single rows are sent as probes, of one lane
// after the other, with back-off, until one is taken. The lanes wait for the sink
// and have no timers of their own. See suspect.go.
//
// # Memory
//
// A buffer is bounded. When those of all sinks are full, the [Feed] takes nothing
// more, which pauses the source. A buffer that is full of lanes that stand still,
// or alone among others, is relieved: whole lanes are parked in the store, in the
// order of their seq, and leave memory. Rows of such a lane that come later follow
// it there. When it may move it is read back, a few runs at a time; it is whole
// again, and takes rows into memory, when a reading has come to its end and nothing
// is on its way to the store. Parked rows are safe: the checkpoint passes them. So
// the same is done, without leaving memory, with what holds a log that has grown
// too long. See feed.go, park.go and readback.go.
//
// Memory is bounded in bytes, too: payloads past the bound are read again at the claim,
// requests have a share of as many bytes again, and rows larger than that take turns.
// See large.go.
//
// A parked row's outcome and the end of its parked copy are one transaction. While a
// row is being parked its outcome waits, so that no parked row outlives it.
//
// A row whose outcome its table refuses is parked at once, so that it holds no log, and
// the outcome is tried again with back-off until the table takes it. See refused.go.
//
// # Replay
//
// A job sends rows again that were delivered before. They have lanes beside the
// live ones, with the same turns, back-off and proof, and may be probes; but they
// are not claimed, have no status and are never parked. Each is written down for its
// job once it was taken or refused for good, and the store keeps it until then. So
// nothing has to be given back, and what is sent twice after a crash is what was in
// memory. A request has live rows or those of one job: its receiver is told.
//
// The live lane of the group stands meanwhile. Before the job looks which of its rows
// were delivered, the lane has to be still: a COMPLETED that is not yet written looks
// like a row that is still to come. For rows that a job sends to another sink it need
// stand no longer than for that look. A pause of the group stops both its lanes. See
// shadow.go and hold.go.
//
// # Locked rows and tables
//
// While another session keeps the table of an outbox locked, its lanes and outcomes are
// put aside: nothing of it is claimed, written or read back, and other outboxes go on.
// Its rows leave the buffer like those of other lanes that stand still. One worker
// waits in the store until the table is free. A table that is locked again and again is
// tried at growing intervals, up to 2 s. Outcomes of locked rows are written again
// together, about once a second. See locked.go.
//
// # Failure policy
//
// A store that cannot be reached is tried again for ever: rows stay where they
// are. store.ErrNotLeader ends Run at once, and requests in flight are
// cancelled. When the context ends, no run begins, requests in flight get their
// time to end, outcomes are written, and rows that were claimed and not sent are
// given back as PENDING.
package dispatch
