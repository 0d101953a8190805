// Package dispatch delivers outbox rows to a sink. It keeps each message group in
// order, runs groups in parallel, retries failures, and decides whether a failure
// counts against a row.
//
// # Model
//
// Each row enters the lane of its (outbox, kind, group), and a lane has at most one
// request in flight. The kind counts only if the sink handles each kind in its own way. Lanes with rows wait in a first-in, first-out queue for a
// sender. On its turn a lane contributes one run: the rows at its head that fit into
// one request. If more lanes are ready than senders are free, several lanes share a
// request. The dispatcher claims the rows of a request in the store, sends them, and
// writes their outcomes:
//
//	idle → ready → claiming → sending → ready or idle
//	         ↑        │          └────→ writing → waiting → ready   (a failure)
//	         │        └───────────────→ waiting → ready             (not yet visible, held)
//	         └ held: blocked by a FAILED row, paused by an operator, or replayed
//
// With [Options.Late] fresh rows go from ready to sending, and the claimer only reads older rows without an
// attempt. It claims both only if their request is not answered soon; see late.go.
//
// # Core and workers
//
// The core is a pure state machine. Events go in: rows, claim answers, results,
// written outcomes, time, operator requests. Commands come out: requests to claim,
// requests to send, outcomes to write. The [Dispatcher] drives it under one lock. Its
// workers pull commands whenever they are free. This batches without timers: a claim
// or an outcome goes out at once if none is in flight, and everything that arrives
// meanwhile forms the next statement. While many outcomes wait they go out in two statements at once; see
// package outcome.
//
// The core keeps the steps of a row: append, claim, answer, write. The packages below
// internal keep the rest, each with a table of its states: lane the lanes, queues,
// requests and memory; spill the rows that leave memory; breaker the circuit breakers;
// outcome the outcomes on their way; replay the replay jobs.
//
// # Order
//
// A failed row is retried before any later row of its lane. The next row leaves once
// COMPLETED is known, or once FAILED is durable. Rows found outside the log go in
// front of the rows from the log, but behind a run in flight.
//
// If claims are not written, an outcome can reach the store before the store sees the
// row. The outcome is retried soon, and a lane that waits for it keeps waiting.
//
// # Attributing failures
//
// If the receiver rejects a request of several rows, the request is halved until one
// row is isolated. A request shared by several lanes is first split between lanes. A
// single lane then sends one half after the other. A lane whose last request failed
// does not share requests. An unavailable receiver starts no search.
//
// A receiver in mode [sink.Prefix] stores the leading rows of each lane. The first row that
// it did not store fails. Rows behind it are sent again with it, and no failure is recorded
// for them. Lanes that failed share requests with each other, because they do not affect
// each other.
//
// A refusal counts against a row only with proof that the receiver works:
//
//   - the receiver accepted another request that began after the row's last failure, or
//   - the receiver rejected this row alone.
//
// Without proof a refused row counts once per ProofWait. On a quiet system a request
// without rows can supply the proof; see ping.go.
//
// A sink whose rows name their endpoints ([sink.Limits]) has a circuit breaker for each, and a
// lane waits for the endpoint of its head. Package lane bounds how many senders an endpoint
// holds that does not answer.
//
// Unavailable and misconfigured answers never cost a row a retry. Part of the receiver
// may be down, and every row that needs that part would become a dead letter. A suspect row
// ([sink.Outcome]) does with proof, because the receiver fails on it alone.
// If a row goes unanswered for ProofWait while other rows are accepted, its lane is
// stalled and reported.
//
// # Memory
//
// Each buffer is bounded in rows and bytes. If the buffers of all sinks are full, the
// caller appends no more rows, which pauses the source; see [Dispatcher.BufferLevel]. The
// dispatcher spills whole lanes to the store if the lanes that fill the buffer do not move,
// or if the buffer drains slowly while another sink has room. Later rows of a spilled lane
// follow it into the store. Once the lane may move it is reloaded, a few runs at a time.
//
// The checkpoint passes spilled rows, because they are durable. So if the retained log
// grows too long, the dispatcher also spills the rows that hold it, and keeps them in
// memory too. One transaction writes the outcome of a spilled row and deletes its copy.
// While a row is being spilled its outcome waits, so that no copy outlives the row. If the
// outbox table refuses an outcome, the row is spilled at once; see table_faults.go.
//
// # Replay
//
// A replay job sends delivered rows again. Its rows have replay lanes beside the live
// lanes, with the same scheduling, backoff and proof rule; a replayed row may serve as
// a probe. They differ in four ways:
//
//   - they are not claimed and have no status
//   - they are never spilled
//   - each is recorded for its job once it is accepted or refused for good; the store keeps
//     it until then, so nothing is given back, and a crash repeats at most the rows in
//     memory
//   - a request carries live rows or rows of one job, never both, because the receiver sees
//     a replay marker
//
// The live lane of the group is held meanwhile, or, if the job sends to another sink, while
// the job reads which of its rows were delivered. Pausing a group stops both its lanes.
//
// # Locked rows and tables
//
// While another session locks the table of an outbox, its lanes and outcomes are set
// aside. Nothing of that outbox is claimed, written or reloaded, and other outboxes go
// on. One worker waits in the store until the table is free. A table that is locked
// repeatedly is tried at growing intervals of up to 2 s. Outcomes of locked rows are
// retried together, about once a second.
//
// # Failure policy
//
//   - Store unreachable: the dispatcher retries indefinitely; rows keep their place.
//   - store.ErrNotLeader: Run ends at once and cancels requests in flight.
//   - Context ended: no new run begins. Requests in flight get the drain timeout, their
//     outcomes are written, and claimed rows that were not sent return to PENDING.
package dispatch
