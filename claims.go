package sluicebox

import "context"

// commitWaits is implemented by stores whose commits may wait for a standby.
type commitWaits interface {
	// CommitsWait returns why a commit waits for another server, "" if none does. The log
	// then shows rows that a failover may lose.
	CommitsWait(ctx context.Context) (reason string, err error)
}

// mayGoUnclaimed reports whether rows that the log has just brought may be sent before they
// are claimed.
func (r *Relay) mayGoUnclaimed() bool {
	return r.opt.LateClaims && r.opt.TakeoverTimeout == 0
}
