package feed

import (
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store"
)

// Status is the state of a feeder.
type Status struct {
	// Epoch is that of the leadership, 0 without one.
	Epoch store.Epoch
	// Records is the number of records that Kafka has acknowledged since the feeder was made.
	Records int64
	// Buffered records wait for Kafka, and hold Bytes of memory.
	Buffered, Bytes int
	// WaitingSince is the time of the last acknowledgement, or of the first waiting record if that
	// was sent later. It is zero while no record waits.
	WaitingSince time.Time
	// Problem is the last error of a connection since then.
	Problem error
	// Advice are the settings of the topic that weaken it, as the session found them at its start.
	Advice []store.Finding
}

// Status returns the present state. It may be called at any time.
func (f *Feeder) Status() Status {
	f.status.mu.Lock()
	defer f.status.mu.Unlock()
	return f.status.now
}

// status keeps a Status. It is a hook of the client.
type status struct {
	mu  sync.Mutex
	now Status
}

var _ kgo.HookBrokerConnect = (*status)(nil)

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (s *status) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Problem = err
}

func (s *status) lead(epoch store.Epoch, advice []store.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Epoch, s.now.Problem, s.now.Advice = epoch, nil, advice
}

func (s *status) sent(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.Buffered == 0 {
		s.now.WaitingSince = time.Now()
	}
	s.now.Buffered++
	s.now.Bytes += bytes
}

func (s *status) done(bytes int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Buffered--
	s.now.Bytes -= bytes
	if err != nil {
		s.now.Problem = err
		return
	}
	s.now.Records++
	s.now.Problem = nil
	s.now.WaitingSince = time.Time{}
	if s.now.Buffered > 0 {
		s.now.WaitingSince = time.Now()
	}
}

// reset ends a session: what waited is gone, and the next session reads it again.
func (s *status) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = Status{Records: s.now.Records, Problem: s.now.Problem}
}

// nobody ignores all events.
type nobody struct{}

func (nobody) Connected()                        {}
func (nobody) Disconnected(error, time.Duration) {}
func (nobody) Saved(store.Checkpoint)            {}
func (nobody) SaveFailed(error)                  {}
func (nobody) Leads(store.Epoch)                 {}
func (nobody) Restored(_, _ store.Epoch)         {}
