package app

import "fmt"

// standby is the relay while another one leads. It implements leader.Observer.
type standby struct {
	*relay
	said string // last
}

// StandsBy implements leader.Observer.
func (s *standby) StandsBy(holder string) {
	s.ran = true
	s.other.Store(&holder)
	if holder == "" {
		holder = "another relay"
	}
	detail := "standing by; " + holder + " leads"
	s.health.only(right("leader", detail), right("database", "reached"))
	if s.changes(detail) {
		s.metrics.StandsBy()
		s.log.Info("standing by", "name", s.cfg.Settings.Name, "leader", holder)
	}
}

// TryFailed implements leader.Observer.
func (s *standby) TryFailed(err error) {
	s.other.Store(nil)
	s.health.only(wrong("database", err.Error()))
	if s.changes(err.Error()) {
		s.log.Warn("the leader's lock cannot be asked for; trying again", "error", err)
	}
}

// changes reports whether the standby has something new to say.
func (s *standby) changes(said string) bool {
	before := s.said
	s.said = said
	return said != before
}

// Leader implements admin.Leader.
func (r *relay) Leader() (leads bool, detail string) {
	if t, epoch := r.tenure.Load(), r.epoch.Load(); t != nil && epoch > 0 {
		if t.Sure() {
			return true, fmt.Sprintf("leading, epoch %d", epoch)
		}
		return false, "in doubt: the database does not answer"
	}
	for _, c := range r.health.Checks() {
		if c.Name == "leader" {
			return false, c.Detail
		}
	}
	return false, "not leading"
}
