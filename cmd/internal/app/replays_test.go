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
	named, jobs := checkpointController{cfg, standbyRequests}, replayController{cfg, standbyRequests}
	ctx := t.Context()
	_, list := named.List(ctx)
	_, start := jobs.Start(ctx, &replay.Spec{From: "a", Outboxes: []string{"orders", "bills"}, Sink: "far"})
	_, refused := jobs.Errors(ctx, "abc", 1)
	for what, err := range map[string]error{
		"list": list, "create": named.Create(ctx, "a", false), "delete": named.Delete(ctx, "a"), "start": start,
		"errors": refused, "act": jobs.Act(ctx, "abc", "pause"),
	} {
		if !errors.Is(err, sluicebox.ErrNotLeading) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// TestLogOfPollingRelay checks that a relay configured to poll retains no log.
func TestLogOfPollingRelay(t *testing.T) {
	polls := strings.Replace(strings.Replace(twoSinks, "sqlite:///none.db", "postgres://db/shop", 1), `shop"`, `shop", mode: poll`, 1)
	controller := checkpointController{loadConfig(t, polls), standbyRequests}
	err := controller.Create(t.Context(), "a", true)
	var request *sluicebox.RequestError
	if !errors.As(err, &request) || !strings.Contains(request.Problem, "this relay polls (source.mode)") {
		t.Errorf("got %v", err)
	}
	if err := controller.Create(t.Context(), "a", false); !errors.Is(err, sluicebox.ErrNotLeading) {
		t.Errorf("without its log: %v", err)
	}
}
