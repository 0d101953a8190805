package sluicebox

import (
	"context"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// ClaimsMode says when the relay writes PROCESSING into a row.
type ClaimsMode string

// Values of ClaimsMode.
const (
	// ClaimsOn: before the row is sent.
	ClaimsOn ClaimsMode = "on"

	// ClaimsLate: a row that the log has just brought is sent at once, and claimed only if its
	// request is not answered soon. All other rows are claimed before they are sent. Where this
	// is unsafe ClaimsOn is in force; see ReadClaims.
	ClaimsLate ClaimsMode = "late"

	// ClaimsOff: never; see store.Layout.Unclaimed.
	ClaimsOff ClaimsMode = "off"
)

// ClaimsStatus is the claims mode in force. It may differ from the configured mode, because
// ClaimsLate is not safe everywhere.
type ClaimsStatus struct {
	Mode ClaimsMode `json:"mode"`

	// Reason is why this mode is in force: "configured", or what prevents ClaimsLate.
	Reason string `json:"reason"`
}

// configuredMode is the Reason of the mode that is configured.
const configuredMode = "configured"

// ReadClaims returns the claims mode of a relay with these options, on this store. With an error
// of the store it is ClaimsOn.
//
// ClaimsLate is not used:
//
//   - with a TakeoverTimeout: another program works on the tables, and sends a row that does
//     not show that it is being sent.
//   - while polling: the tables do not show which rows are new.
//   - if commits wait for a standby: the log has a row before the standby does, and a failover
//     loses it. A claim waits until the row is visible.
func (o *Options) ReadClaims(ctx context.Context, st store.CommitWaiter, polling bool) (ClaimsStatus, error) {
	notLate := func(reason string) ClaimsStatus { return ClaimsStatus{ClaimsOn, "not late: " + reason} }
	switch {
	case o.neverClaims():
		return ClaimsStatus{ClaimsOff, configuredMode}, nil
	case o.Claims == ClaimsOn:
		return ClaimsStatus{ClaimsOn, configuredMode}, nil
	case o.TakeoverTimeout > 0:
		return notLate("another processor works on the tables (takeover timeout)"), nil
	case polling:
		return notLate("rows are read from the tables, not from the log"), nil
	}

	setting, err := st.CommitsWait(ctx)
	switch {
	case err != nil:
		return notLate("unknown whether commits wait for a standby"), err
	case setting != "":
		return notLate("commits wait for a standby (" + setting + ")"), nil
	}
	return ClaimsStatus{ClaimsLate, configuredMode}, nil
}

// neverClaims reports whether no outbox has its rows claimed.
func (o *Options) neverClaims() bool {
	return !slices.ContainsFunc(o.Outboxes, func(b Outbox) bool { return !b.Layout.Unclaimed })
}

const (
	// claimsInterval is how often a leader reads whether commits wait for a standby.
	claimsInterval = 2 * time.Second
	// claimsTimeout limits one read. The mode is ClaimsOn until the next one succeeds.
	claimsTimeout = 2 * time.Second
)

// mayGoUnclaimed reports whether rows that the log has just brought may be sent without a
// statement before. The dispatchers ask with each claim. With ClaimsOff a claim only reads
// whether this relay leads, which the outcome checks too.
func (r *Relay) mayGoUnclaimed() bool {
	status := r.claims.Load()
	return status != nil && (status.Mode == ClaimsLate || status.Mode == ClaimsOff && !r.isPolling.Load())
}

// watchClaims keeps the claims mode up to date until the context ends, because an operator
// may change the server's setting at any time.
func (r *Relay) watchClaims(ctx context.Context) error {
	for {
		if err := backoff.Sleep(ctx, claimsInterval); err != nil {
			return err
		}
		r.updateClaims(ctx)
	}
}

// updateClaims finds out which claims mode is in force, and logs a change.
func (r *Relay) updateClaims(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, claimsTimeout)
	defer cancel()
	status, failure := r.opt().ReadClaims(bounded, r.db.store, r.isPolling.Load())
	if ctx.Err() != nil {
		return
	}

	if current := r.claims.Swap(&status); current == nil || current.Mode != status.Mode {
		r.observer.ClaimsMode(status.Mode)
	}
	before := r.loggedClaims
	r.loggedClaims = status
	if status == before || before.Mode == "" && status.Reason == configuredMode {
		return // as it was, or as everybody expects it
	}
	attrs := []any{"mode", string(status.Mode), "reason", status.Reason}
	if failure != nil {
		attrs = append(attrs, "error", failure)
	}
	r.log.Info("claims mode changed", attrs...)
}
