package dispatch

// Memory is bounded in bytes as well as in rows. Payloads of rows that wait count
// against the buffer's bytes: past them a payload is dropped, and the claim reads it
// again. What requests carry comes on top. A request has at most its share of as many
// bytes again, so that all of them together have no more. A row that is larger than
// that share goes alone, and large ones in flight have as many bytes once more, or
// there is but one of them. Those that find no room wait in a queue of their own, in
// which none overtakes another; smaller rows do not wait for them.

// freeTextBytes is how many bytes of id, kind and group a row may have and count as one
// row, even where the buffer has fewer bytes a row.
const freeTextBytes = 1 << 10

// countIn counts a row in.
func (c *core) countIn(rw *row) {
	c.rows++
	share := max(freeTextBytes, c.cfg.BufferBytes/int64(max(1, c.cfg.BufferRows)))
	rw.extraWeight = int(int64(rw.TextBytes()) / share)
	if rw.reloaded {
		c.extraReloaded += rw.extraWeight
	} else {
		c.extraWeight += rw.extraWeight
	}
	c.bytes += int64(len(rw.Payload))
	c.shedPayload(rw)
}

// clearExtraWeight has a row count as one, or no more.
func (c *core) clearExtraWeight(rw *row) {
	if rw.reloaded {
		c.extraReloaded -= rw.extraWeight
	} else {
		c.extraWeight -= rw.extraWeight
	}
	rw.extraWeight = 0
}

// shedPayload drops the payload of a row that waits, if the buffer has too many bytes.
func (c *core) shedPayload(rw *row) {
	if c.bytes > c.cfg.BufferBytes && rw.job == nil {
		c.dropPayload(rw)
	}
}

// shedPayloads sheds the rows of a run that was not sent, or in vain.
func (c *core) shedPayloads(r *run) {
	for _, rw := range r.rows {
		c.shedPayload(rw)
	}
}

// dropPayload takes the payload of a live row out of memory.
func (c *core) dropPayload(rw *row) {
	c.bytes -= int64(len(rw.Payload))
	rw.Payload = nil
}

// requestShare is the most bytes of a request, but for one with a single row.
func (c *core) requestShare() int64 {
	return c.cfg.BufferBytes / int64(c.cfg.MaxConcurrentGroups+c.cfg.claimAhead())
}

// largeSize is how many bytes a request with this row alone takes of those that large
// rows have. The rows of a job are in memory already.
func (c *core) largeSize(rw *row) int64 {
	if size := int64(rw.PayloadSize); rw.job == nil && size > c.requestShare() {
		return size
	}
	return 0
}

// fitsLarge reports whether a request with this row alone may begin.
func (c *core) fitsLarge(rw *row) bool {
	n := c.largeSize(rw)
	return n == 0 || c.largeBytes == 0 || c.largeBytes+n <= c.cfg.BufferBytes
}

// waitsForLarge reports whether a lane whose turn it is has to wait for large rows: for
// those in flight, or for those whose turn came before.
func (c *core) waitsForLarge(l *lane) bool {
	rw := l.rows[0]
	return !c.fitsLarge(rw) || c.largeSize(rw) > 0 && c.large.len() > 0
}

// nextLarge makes a request of the large row that has waited longest, nil if there is
// no room for it.
func (c *core) nextLarge() *request {
	if c.large.len() == 0 || !c.fitsLarge(c.large.items[0].rows[0]) {
		return nil
	}
	l, req := c.large.pop(), &request{}
	rows, _ := l.head(1, 0)
	req.add(l, rows)
	return req
}

// reserveLarge counts a request in.
func (c *core) reserveLarge(req *request) {
	if req.size() == 1 {
		req.largeBytes = c.largeSize(req.runs[0].rows[0])
		c.largeBytes += req.largeBytes
	}
}

// releaseLarge counts a request out whose payloads nobody needs any more.
func (c *core) releaseLarge(req *request) {
	c.largeBytes -= req.largeBytes
	req.largeBytes = 0
}

// requeueLarge puts the lanes of a receiver that wait for large rows back among its others.
func (c *core) requeueLarge(recv *receiver) {
	for _, l := range c.large.removeAll(func(l *lane) bool { return l.receiver == recv }) {
		recv.push(l)
	}
}
