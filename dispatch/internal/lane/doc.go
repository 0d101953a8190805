// Package lane holds the lanes of a sink: their rows, the queues in which they wait, the
// requests in flight, and the memory that the rows take. It is pure: it starts no
// goroutine, reads no clock and sends nothing.
//
// A lane is the FIFO queue of one group, with at most one request in flight. It is in
// exactly one place at a time:
//
//	State     Event                                           Next      Place
//	idle      it has rows and nothing holds it: Queue         ready     its receiver's queue, or that of
//	                                                                    an outbox that is set aside
//	idle      its head is retried or skipped: QueueUrgent     ready     the queue that is claimed first
//	idle      Hold                                            held      none
//	ready     its table is locked: LockTable                  ready     the queue of the outbox, until
//	          its outbox is paused: PauseOutbox                         UnlockTable, ResumeOutbox
//	ready     its head is large and does not fit yet          ready     the queue of large rows
//	ready     NextClaims: live rows                           claiming  the request
//	ready     NextClaims: replayed rows                       sending   the request
//	ready     NextClaims, StartFresh: fresh rows              sending   the request
//	claiming  Checked: its table shows its rows untried       sending   the request
//	sending   the request was not claimed, and is halved:     claiming  the request
//	          PushUnclaimed
//	claiming  some of its rows are claimed: Send              sending   the request
//	claiming  a row must wait: Wait                           waiting   the timers
//	sending   an outcome of its head is written first: Write  writing   the outcome
//	sending   it failed: Wait                                 waiting   the timers
//	writing   a retry is written: Wait                        waiting   the timers
//	waiting   Due                                             idle      none
//	any       Dequeue, or its step ends: Rest                 idle      none
//
// The caller moves an idle lane on at once, or removes it if it has no rows. A receiver has
// three queues: ready lanes, ready replay lanes, and lanes that were probed since its
// breaker opened. While the breaker is open only probes leave them. BreakerChanged moves
// the lanes to the queues that fit.
//
// A live row in memory counts against one account:
//
//	From       Event                                                       To
//	uncounted  the log, a table or an operator brings the row              buffered
//	uncounted  the row is reloaded                                         reloaded
//	buffered,  the row is spilled and in no lane: it only waits until its  detached
//	reloaded   table accepts its outcome
//	any        the row is done or leaves memory                            uncounted
//
// Its other states are independent of each other:
//
//	From        Event                                                      To
//	unseen      RecordClaim: a claim finds the row                         seen
//	seen        GiveBack: its lane shrinks                                 unclaiming
//	unclaiming  GivenBack: PENDING is written, or the row was skipped      seen
//
//	open        ResetInFlight: an operator requeues or discards the row    reset
//	            while its FAILED is being written
//	reset       ResetFailed: FAILED is written                             open
//	open        Finish: the row is delivered, or found settled or gone     done
//
//	logged      ResetFailed, without a ticket                              requeued
//
// For example, a lane of 300 rows whose receiver is down is ready, then sending, and waits
// for its backoff with 300 buffered rows. Its first rows go again when it is due, or when
// the breaker closes.
package lane
