package app

import "fmt"

// standby reports the relay's state while another relay is the leader. It implements
// leader.Observer.
type standby struct {
	*relay
	lastReported string // avoids repeated log lines
}

// Standby implements leader.Observer.
func (s *standby) Standby(holder string) {
	s.hasRun = true
	s.otherLeader.Store(&holder)
	if holder == "" {
		holder = "another relay"
	}
	detail := "standing by; " + holder + " leads"
	s.health.replaceAll(passedCheck("leader", detail), passedCheck("database", "reached"))
	if s.isNew(detail) {
		s.metrics.SetStandby()
		s.log.Info("standing by", "name", s.cfg.Settings.Name, "leader", holder)
	}
}

// LockFailed implements leader.Observer.
func (s *standby) LockFailed(err error) {
	s.otherLeader.Store(nil)
	s.health.replaceAll(failedCheck("database", err.Error()))
	if s.isNew(err.Error()) {
		s.log.Warn("leader lock unavailable; retrying", "error", err)
	}
}

// isNew reports whether text differs from the last one.
func (s *standby) isNew(text string) bool {
	before := s.lastReported
	s.lastReported = text
	return text != before
}

// Leader implements admin.Leader.
func (r *relay) Leader() (leads bool, detail string) {
	if t, epoch := r.tenure.Load(), r.epoch.Load(); t != nil && epoch > 0 {
		if t.IsLeader() {
			return true, fmt.Sprintf("leading, epoch %d", epoch)
		}
		return false, "leadership unconfirmed: no response from the database"
	}
	for _, c := range r.health.Checks() {
		if c.Name == "leader" {
			return false, c.Detail
		}
	}
	return false, "not leading"
}
