package lane

import "github.com/sluicebox/sluicebox/store"

// Memory is bounded in bytes as well as in rows.
//
//   - Payloads and attributes of waiting rows count against BufferBytes. Beyond it they are
//     dropped, and the claim reads them again.
//   - Requests in flight may hold BufferBytes once more, in equal shares.
//   - A row larger than a share is sent alone. Large rows in flight may hold BufferBytes a
//     third time, or there is only one of them.
//   - Large rows without room wait in their own first-in, first-out queue. Smaller rows do
//     not wait for them.
//   - A row that only the log has keeps its content until it is delivered or spilled. So its
//     content counts against the rows of the buffer, like long texts.

// freeTextBytes is how many bytes of id, kind and group a row may have and still count as
// one row, even if the buffer has fewer bytes per row.
const freeTextBytes = 1 << 10

// Account is the limit that a live row in memory counts against. Reloaded rows have their
// own, so that they and rows from the log never crowd each other out. See the package
// comment for its transitions.
type Account uint8

// Accounts of a row.
const (
	Uncounted Account = iota
	Buffered          // against BufferRows
	Reloaded          // against half of BufferRows
	Detached          // with the refused outcomes
	accounts
)

// Memory counts the live rows in memory, and drops payloads beyond its limits.
type Memory struct {
	// LogOnly are the outboxes whose rows only the log has; see store.Layout.LogOnly.
	LogOnly map[string]bool

	cfg          *Config
	rows, weight [accounts]int
	bytes        int64 // payloads in memory
	largeBytes   int64 // payloads of large requests in flight
}

// Bytes is the payload in memory.
func (m *Memory) Bytes() int64 { return m.bytes }

// LargeBytes is the payload of large requests in flight.
func (m *Memory) LargeBytes() int64 { return m.largeBytes }

// Rows is the number of rows in an account.
func (m *Memory) Rows(in Account) int { return m.rows[in] }

// Total is the number of rows in lanes or with an unwritten outcome.
func (m *Memory) Total() int { return m.rows[Buffered] + m.rows[Reloaded] + m.rows[Detached] }

// Used is how much of its limit an account uses, in rows.
func (m *Memory) Used(by Account) int { return m.rows[by] + m.weight[by] }

// Move moves a row to another account. The weight is the additional row count of rows with
// long texts or content that is kept, which count while they are in a lane.
func (m *Memory) Move(rw *Row, to Account) {
	m.rows[rw.Account]--
	m.weight[rw.Account] -= rw.weight
	if to == Uncounted || to == Detached {
		rw.weight = 0
	}
	rw.Account = to
	m.rows[to]++
	m.weight[to] += rw.weight
}

// Enter counts a row that enters memory.
func (m *Memory) Enter(rw *Row, to Account) {
	share := max(freeTextBytes, m.cfg.BufferBytes/int64(max(1, m.cfg.BufferRows)))
	counted := rw.TextBytes()
	if m.LogOnly[rw.Outbox] {
		counted += rw.ContentBytes()
	}
	rw.weight = int(int64(counted) / share)
	m.Move(rw, to)
	m.bytes += int64(rw.ContentBytes())
	m.Shed(rw)
}

// Units is how much of its limit a row uses.
func (rw *Row) Units() int { return 1 + rw.weight }

// UnitsOf returns the sum of Units over rows.
func UnitsOf(rows []*Row) (sum int) {
	for _, rw := range rows {
		sum += rw.Units()
	}
	return sum
}

// KeepsContent reports whether there are rows that keep their content.
func (m *Memory) KeepsContent() bool {
	for _, only := range m.LogOnly {
		if only {
			return true
		}
	}
	return false
}

// Leave removes a row that leaves memory.
func (m *Memory) Leave(rw *Row) {
	m.Move(rw, Uncounted)
	m.drop(rw)
}

// SetPayload stores the content that the claim read again; a nil payload if it read none.
func (m *Memory) SetPayload(rw *Row, payload []byte, attributes store.Attributes) {
	if payload == nil {
		return
	}
	m.bytes -= int64(rw.ContentBytes())
	rw.Payload, rw.PayloadSize, rw.Attributes = payload, len(payload), attributes
	m.bytes += int64(rw.ContentBytes())
}

// Shed drops the payloads of waiting rows if the buffer exceeds its bytes.
func (m *Memory) Shed(rows ...*Row) {
	for _, rw := range rows {
		if m.bytes > m.cfg.BufferBytes && rw.Job == nil {
			m.DropPayload(rw)
		}
	}
}

// DropPayload drops the content of a live row from memory, unless only the log has the row. Also if
// it is delivered: it may be spilled, and sent again after a crash, until its outcome is written.
func (m *Memory) DropPayload(rw *Row) {
	if !m.LogOnly[rw.Outbox] {
		m.drop(rw)
	}
}

func (m *Memory) drop(rw *Row) {
	m.bytes -= int64(rw.ContentBytes())
	rw.Payload, rw.Attributes = nil, nil
}

// RequestShare is the maximum payload of a request with several rows, in bytes.
func (m *Memory) RequestShare() int64 {
	return m.cfg.BufferBytes / int64(m.cfg.Senders+m.cfg.ClaimAhead)
}

// largeSize is how many bytes a request with this row alone takes of the budget for large
// rows; 0 if it is not large. Replayed rows do not count, because their payloads are in
// memory already.
func (m *Memory) largeSize(rw *Row) int64 {
	if size := int64(rw.PayloadSize); rw.Job == nil && size > m.RequestShare() {
		return size
	}
	return 0
}

// fitsLarge reports whether a request with this row alone may begin.
func (m *Memory) fitsLarge(rw *Row) bool {
	n := m.largeSize(rw)
	return n == 0 || m.largeBytes == 0 || m.largeBytes+n <= m.cfg.BufferBytes
}

// reserveLarge takes the request's share of the budget for large rows.
func (m *Memory) reserveLarge(req *Request) {
	if req.Size() == 1 {
		req.LargeBytes = m.largeSize(req.Runs[0].Rows[0])
		m.largeBytes += req.LargeBytes
	}
}

// ReleaseLarge returns the share once the payloads are no longer needed.
func (m *Memory) ReleaseLarge(req *Request) {
	m.largeBytes -= req.LargeBytes
	req.LargeBytes = 0
}
