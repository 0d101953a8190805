package dispatch

// Memory is bounded in bytes as well as in rows.
//
//   - Payloads of waiting rows count against BufferBytes. Beyond it a payload is dropped,
//     and the claim reads it again.
//   - Requests in flight may hold BufferBytes once more, in equal shares.
//   - A row larger than a share is sent alone. Large rows in flight may hold BufferBytes a
//     third time, or there is only one of them.
//   - Large rows without room wait in their own first-in, first-out queue. Smaller rows do
//     not wait for them.

// freeTextBytes is how many bytes of id, kind and group a row may have and still count as
// one row, even if the buffer has fewer bytes per row.
const freeTextBytes = 1 << 10

// account is the limit that a live row in memory counts against. Reloaded rows have their
// own, so that they and rows from the log never crowd each other out.
//
//	From       Event                                                       To
//	uncounted  the log, a table or an operator brings the row              buffered
//	uncounted  the row is reloaded                                         reloaded
//	buffered,  the row is spilled and in no lane: it only waits until its  detached
//	reloaded   table accepts its outcome
//	any        the row is done or leaves memory                            uncounted
type account uint8

const (
	uncounted account = iota
	buffered          // against BufferRows
	reloaded          // against half of BufferRows
	detached          // with the refused outcomes; see tooManyUnwritten
	accounts
)

// memory counts the live rows in memory.
type memory struct {
	rows, weight [accounts]int
	bytes        int64 // payloads in memory
	largeBytes   int64 // payloads of large requests in flight
}

// move moves a row to another account. weight is the additional row count of rows with long
// texts, which count while they are in a lane.
func (m *memory) move(rw *row, to account) {
	m.rows[rw.Account]--
	m.weight[rw.Account] -= rw.weight
	if to == uncounted || to == detached {
		rw.weight = 0
	}
	rw.Account = to
	m.rows[to]++
	m.weight[to] += rw.weight
}

// total is the number of rows in lanes or with an unwritten outcome.
func (m *memory) total() int { return m.rows[buffered] + m.rows[reloaded] + m.rows[detached] }

// used is how much of its limit an account uses, in rows.
func (m *memory) used(by account) int { return m.rows[by] + m.weight[by] }

// countIn counts a row that enters memory.
func (c *core) countIn(rw *row, to account) {
	share := max(freeTextBytes, c.cfg.BufferBytes/int64(max(1, c.cfg.BufferRows)))
	rw.weight = int(int64(rw.TextBytes()) / share)
	c.memory.move(rw, to)
	c.memory.bytes += int64(len(rw.Payload))
	c.shedPayload(rw)
}

// shedPayload drops the payload of a waiting row if the buffer exceeds its bytes.
func (c *core) shedPayload(rw *row) {
	if c.memory.bytes > c.cfg.BufferBytes && rw.Job == nil {
		c.dropPayload(rw)
	}
}

// shedPayloads sheds the payloads of a run that was not delivered.
func (c *core) shedPayloads(r *run) {
	for _, rw := range r.Rows {
		c.shedPayload(rw)
	}
}

// dropPayload drops the payload of a live row from memory.
func (c *core) dropPayload(rw *row) {
	c.memory.bytes -= int64(len(rw.Payload))
	rw.Payload = nil
}

// requestShare is the maximum payload of a request with several rows, in bytes.
func (c *core) requestShare() int64 {
	return c.cfg.BufferBytes / int64(c.cfg.MaxConcurrentGroups+c.cfg.claimAhead())
}

// largeSize is how many bytes a request with this row alone takes of the budget for large
// rows; 0 if it is not large. Replayed rows do not count, because their payloads are in
// memory already.
func (c *core) largeSize(rw *row) int64 {
	if size := int64(rw.PayloadSize); rw.Job == nil && size > c.requestShare() {
		return size
	}
	return 0
}

// fitsLarge reports whether a request with this row alone may begin.
func (c *core) fitsLarge(rw *row) bool {
	n := c.largeSize(rw)
	return n == 0 || c.memory.largeBytes == 0 || c.memory.largeBytes+n <= c.cfg.BufferBytes
}

// waitsForLarge reports whether a lane must wait for large rows that are in flight or
// queued before it.
func (c *core) waitsForLarge(l *lane) bool {
	rw := l.Rows[0]
	return !c.fitsLarge(rw) || c.largeSize(rw) > 0 && c.large.len() > 0
}

// nextLarge builds a request for the large row that has waited longest; nil if it does not
// fit yet.
func (c *core) nextLarge() *request {
	if c.large.len() == 0 || !c.fitsLarge(c.large.items[0].Rows[0]) {
		return nil
	}
	l, req := c.large.pop(), &request{}
	rows, _ := l.Head(1, 0)
	req.add(l, rows)
	return req
}

// reserveLarge takes the request's share of the budget for large rows.
func (c *core) reserveLarge(req *request) {
	if req.Size() == 1 {
		req.LargeBytes = c.largeSize(req.Runs[0].Rows[0])
		c.memory.largeBytes += req.LargeBytes
	}
}

// releaseLarge returns the share once the payloads are no longer needed.
func (c *core) releaseLarge(req *request) {
	c.memory.largeBytes -= req.LargeBytes
	req.LargeBytes = 0
}

// requeueLarge moves a receiver's lanes from the queue for large rows back to its own
// queues.
func (c *core) requeueLarge(recv *receiver) {
	for _, l := range c.large.removeAll(func(l *lane) bool { return l.Receiver == recv }) {
		recv.push(l)
	}
}
