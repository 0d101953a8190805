package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
)

func standbyRequests() (sluicebox.RequestStore, error) { return nil, sluicebox.ErrNotLeading }

// TestStandbyRefusesRequests checks that a standby refuses requests at its admin address.
func TestStandbyRefusesRequests(t *testing.T) {
	cfg := loadConfig(t, twoSinks)
	of := requests{cfg, standbyRequests}
	ctx := t.Context()
	_, list := of.Checkpoints(ctx)
	_, start := of.StartReplay(ctx, &replay.Spec{From: "a", Outboxes: []string{"orders", "bills"}, Sink: "far"})
	_, refused := of.ReplayErrors(ctx, "abc", 1)
	for what, err := range map[string]error{
		"list": list, "create": of.CreateCheckpoint(ctx, "a", false), "delete": of.DeleteCheckpoint(ctx, "a"), "start": start,
		"errors": refused, "act": of.ActOnReplay(ctx, "abc", "pause"),
	} {
		if !errors.Is(err, sluicebox.ErrNotLeading) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// TestLogOfPollingRelay checks that a relay configured to poll retains no log.
func TestLogOfPollingRelay(t *testing.T) {
	polls := strings.Replace(strings.Replace(twoSinks, "sqlite:///none.db", "postgres://db/shop", 1), `shop"`, `shop", mode: poll`, 1)
	of := requests{loadConfig(t, polls), standbyRequests}
	err := of.CreateCheckpoint(t.Context(), "a", true)
	var request *sluicebox.RequestError
	if !errors.As(err, &request) || !strings.Contains(request.Problem, "this relay polls (source.mode)") {
		t.Errorf("got %v", err)
	}
	if err := of.CreateCheckpoint(t.Context(), "a", false); !errors.Is(err, sluicebox.ErrNotLeading) {
		t.Errorf("without its log: %v", err)
	}
}
