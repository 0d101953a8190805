package ledger

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestRowForgetsARoute: the record of a row has a renamed or removed route nowhere.
func TestRowForgetsARoute(t *testing.T) {
	old := []string{"hooks"}
	r := &legRow{Matched: old, Done: old, Failed: old, Spilled: old, Again: old, Retries: map[string]legRetry{"hooks": {Count: 1}}}
	for _, step := range []struct {
		gone   string
		change func()
	}{
		{"hooks", func() { r.rename("hooks", "web") }},
		{"web", func() { r.remove("web") }},
	} {
		step.change()
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), step.gone) {
			t.Errorf("%s is still in %s", step.gone, body)
		}
	}
}
