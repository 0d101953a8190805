package ingest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Bounds of the search for lag.
const (
	samplesPerLag = 32 // rows remembered in the time of MaxLag
	askInterval   = time.Second
	askTimeout    = 2 * time.Second
)

// progress knows how long the rows of an outbox wait for their delivery, on a relay that stands by
// too. It remembers some of the rows that this server has written, and asks the table which of
// them are settled. It asks only while requests come, and only once the oldest row is half of
// MaxLag old.
//
// The lag is the age of the first row behind the last settled one. So a group that is blocked does
// not stop the others. After a start the server knows of no row, and takes requests for MaxLag
// whatever waits already.
type progress struct {
	outbox string
	maxLag time.Duration
	reader store.StatusReader
	now    func() time.Time

	mu      sync.Mutex
	samples []sample // oldest first
	asked   time.Time
}

// sample is a row that was written at a time.
type sample struct {
	id string
	at time.Time
}

// wrote remembers a row that was written now, unless it has one of about this time.
func (p *progress) wrote(id string) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.samples); n == 0 || now.Sub(p.samples[n-1].at) >= p.maxLag/samplesPerLag {
		p.samples = append(p.samples, sample{id, now})
	}
}

// lagging reports whether rows have waited for longer than MaxLag. It reports false if that is
// unknown.
func (p *progress) lagging(ctx context.Context) bool {
	if asked, due := p.due(); due && !p.ask(ctx, asked) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.samples) > 0 && p.now().Sub(p.samples[0].at) > p.maxLag
}

// due returns the samples if it is time to ask for them.
func (p *progress) due() ([]sample, bool) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.samples) == 0 || now.Sub(p.samples[0].at) <= p.maxLag/2 || now.Sub(p.asked) < askInterval {
		return nil, false
	}
	p.asked = now
	return slices.Clone(p.samples), true
}

// ask forgets the samples up to the last settled one. It returns false if the database does not
// answer.
func (p *progress) ask(ctx context.Context, of []sample) bool {
	rows := make([]store.ClaimRow, len(of))
	for i := range of {
		rows[i].Ref = store.Ref{Outbox: p.outbox, ID: of[i].id}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	settled, err := p.reader.ReadSettled(ctx, rows)
	if err != nil {
		return false
	}
	last := -1
	for i := range settled {
		if settled[i] {
			last = i
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if last >= 0 {
		at := slices.Index(p.samples, of[last])
		p.samples = slices.Delete(p.samples, 0, at+1) // at is -1 if another request has asked meanwhile
	}
	return true
}
