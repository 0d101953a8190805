package store_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func TestNearest(t *testing.T) {
	known := []string{"url", "stream-url", "mode", "poll-interval", "poll-batch-size"}
	for word, want := range map[string]string{
		"ulr": "url", "mod": "mode", "poll_interval": "poll-interval", "pollInterval": "poll-interval",
		"POLL-BATCH-SIZE": "poll-batch-size", "stream": "", "heartbeat": "", "": "",
		"poll-batch-sizes": "poll-batch-size", string(make([]byte, 1000)): "",
	} {
		if got := store.Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) is %q, want %q", word, got, want)
		}
	}
}
