package kafka

import "time"

// SetClockSkew sets how far the clocks of the feeder and the database may differ.
func (s *Source) SetClockSkew(most time.Duration) { s.clockSkew = most }
