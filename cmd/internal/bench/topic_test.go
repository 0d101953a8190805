package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// A benchmark removes the topics that others left a day ago, and no other topic.
func TestLeftoversAreRemoved(t *testing.T) {
	address, now := servers.NATS.Start(t, nil).URL, time.Now()
	old, young := newTopicName(now.Add(-25*time.Hour)), newTopicName(now.Add(-time.Hour))
	other := namePrefix + "report"
	for _, name := range []string{old, young, other} {
		topic, err := demobroker.Create(t.Context(), address, name, false)
		if err != nil {
			t.Fatal(err)
		}
		topic.Close()
	}
	if err := removeLeftovers(t.Context(), address, now); err != nil {
		t.Fatal(err)
	}
	left, err := demobroker.Leftovers(t.Context(), address, namePrefix)
	slices.Sort(left)
	want := []string{young, other}
	slices.Sort(want)
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left are %q (%v), want %q", left, err, want)
	}
}
