package rabbitmq

import "time"

// SetLimitAge sets how long the limit of the broker is believed.
func SetLimitAge(s *Sink, age time.Duration) { s.limitAge = age }
