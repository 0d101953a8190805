package finding

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// Capacity is a limit of a server, and what the relays of a process need of it at once.
type Capacity struct {
	Setting string // name of the limit
	Limit   int
	Used    int // by others, or reserved
	Needed  int // by the relays
	Relays  int
}

// AddCapacity reports whether the limit is enough. remedy raises it.
func (l *List) AddCapacity(of Capacity, remedy ...string) {
	text := fmt.Sprintf("%s is %d; %d relays need up to %d, and others use %d", of.Setting, of.Limit, of.Relays, of.Needed, of.Used)
	if of.Used+of.Needed <= of.Limit {
		l.Add(store.GradeOK, text)
		return
	}
	l.Add(store.GradeAdvice, text, remedy...)
}
