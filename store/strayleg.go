package store

import "strings"

// StrayLeg is a leg that the relay's tables know and the configuration does not name: its route
// was renamed or removed, or its outbox got its first routes.
type StrayLeg struct {
	Outbox string
	Route  string // "" for the only leg of an outbox without routes

	// Marked: the checkpoint says how far the leg is, so rows of the log may wait for it.
	Marked bool

	Spilled, Failed, Holds int // rows, FAILED rows (up to 10 000), and blocked or paused lanes
}

// Leg returns the name of the leg.
func (s *StrayLeg) Leg() string { return LegName(s.Outbox, s.Route) }

// SplitLegName returns the outbox and the route of a leg. The route is "" if the name has none.
func SplitLegName(leg string) (outbox, route string) {
	if at := strings.LastIndexByte(leg, '/'); at >= 0 {
		return leg[:at], leg[at+1:]
	}
	return leg, ""
}
