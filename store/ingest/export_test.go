package ingest

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Waiting returns the number of requests that wait for a write of an outbox.
func (s *Server) Waiting(outbox string) int {
	b := s.targets[outbox].batcher
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// FreeMemory reports whether all memory of MaxMemory is free.
func (s *Server) FreeMemory() bool {
	if !s.memory.TryAcquire(s.cfg.MaxMemory) {
		return false
	}
	s.memory.Release(s.cfg.MaxMemory)
	return true
}

// Progress is a progress with a clock.
type Progress struct{ p progress }

// NewProgress returns a Progress of outbox o.
func NewProgress(maxLag time.Duration, reader store.StatusReader, now func() time.Time) *Progress {
	return &Progress{progress{outbox: "o", maxLag: maxLag, reader: reader, now: now}}
}

// Wrote is progress.wrote.
func (p *Progress) Wrote(id string) { p.p.wrote(id) }

// Lagging is progress.lagging.
func (p *Progress) Lagging(ctx context.Context) bool { return p.p.lagging(ctx) }

// DecodePostbox and DecodeRows decode bodies. status is that of the fault.
func DecodePostbox(body []byte) (rows []outbox.Row, status int, err error) {
	rows, err = decodePostbox(body)
	return rows, statusOf(err), err
}

// DecodeRows is DecodePostbox for a list.
func DecodeRows(body []byte, groups int) (rows []outbox.Row, status int, err error) {
	rows, err = decodeRows(body, groups)
	return rows, statusOf(err), err
}

func statusOf(err error) int {
	if err == nil {
		return 0
	}
	return failed(err).status
}
