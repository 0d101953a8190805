package dispatch

// Memory is bounded in bytes as well as in rows. Payloads of rows that wait count
// against the buffer's bytes: past them a payload is dropped, and the claim reads it
// again. What requests carry comes on top. A request has at most its share of as many
// bytes again, so that all of them together have no more. A row that is larger than
// that share goes alone, and large ones in flight have as many bytes once more, or
// there is but one of them. Those that find no room wait in a queue of their own, in
// which none overtakes another; smaller rows do not wait for them.

// freeText is how many bytes of id, kind and group a row may have and count as one
// row, even where the buffer has fewer bytes a row.
const freeText = 1 << 10

// count counts a row in.
func (c *core) count(rw *row) {
	c.rows++
	share := max(freeText, c.cfg.BufferBytes/int64(max(1, c.cfg.BufferRows)))
	rw.extra = int(int64(rw.TextBytes()) / share)
	if rw.back {
		c.extraBack += rw.extra
	} else {
		c.extra += rw.extra
	}
	c.bytes += int64(len(rw.Payload))
	c.shed(rw)
}

// lighten has a row count as one, or no more.
func (c *core) lighten(rw *row) {
	if rw.back {
		c.extraBack -= rw.extra
	} else {
		c.extra -= rw.extra
	}
	rw.extra = 0
}

// shed drops the payload of a row that waits, if the buffer has too many bytes.
func (c *core) shed(rw *row) {
	if c.bytes > c.cfg.BufferBytes && rw.job == nil {
		c.dropPayload(rw)
	}
}

// shedRun sheds the rows of a run that was not sent, or in vain.
func (c *core) shedRun(r *run) {
	for _, rw := range r.rows {
		c.shed(rw)
	}
}

// dropPayload takes the payload of a live row out of memory.
func (c *core) dropPayload(rw *row) {
	c.bytes -= int64(len(rw.Payload))
	rw.Payload = nil
}

// share is the most bytes of a request, but for one with a single row.
func (c *core) share() int64 {
	return c.cfg.BufferBytes / int64(c.cfg.MaxConcurrentGroups+c.cfg.ahead())
}

// weigh is how many bytes a request with this row alone takes of those that large
// rows have. The rows of a job are in memory already.
func (c *core) weigh(rw *row) int64 {
	if size := int64(rw.PayloadSize); rw.job == nil && size > c.share() {
		return size
	}
	return 0
}

// fits reports whether a request with this row alone may begin.
func (c *core) fits(rw *row) bool {
	n := c.weigh(rw)
	return n == 0 || c.heavy == 0 || c.heavy+n <= c.cfg.BufferBytes
}

// tooLarge reports whether a lane whose turn it is has to wait for large rows: for
// those in flight, or for those whose turn came before.
func (c *core) tooLarge(l *lane) bool {
	rw := l.rows[0]
	return !c.fits(rw) || c.weigh(rw) > 0 && c.large.len() > 0
}

// nextLarge makes a request of the large row that has waited longest, nil if there is
// no room for it.
func (c *core) nextLarge() *request {
	if c.large.len() == 0 || !c.fits(c.large.items[0].rows[0]) {
		return nil
	}
	l, req := c.large.pop(), &request{}
	rows, _ := l.head(1, 0)
	req.add(l, rows)
	return req
}

// begin counts a request in.
func (c *core) begin(req *request) {
	if req.size() == 1 {
		req.heavy = c.weigh(req.runs[0].rows[0])
		c.heavy += req.heavy
	}
}

// over counts a request out whose payloads nobody needs any more.
func (c *core) over(req *request) {
	c.heavy -= req.heavy
	req.heavy = 0
}

// comeOut puts the lanes of a receiver that wait for large rows back among its others.
func (c *core) comeOut(recv *receiver) {
	for _, l := range c.large.takeAll(func(l *lane) bool { return l.to == recv }) {
		recv.push(l)
	}
}
