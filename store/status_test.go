package store

import "testing"

func TestStatusOf(t *testing.T) {
	words := FlowCatalyst()
	numbers := Layout{State: StateNumbers, Columns: Columns{Status: "s"}, Numbers: map[Status]int{Pending: 0, Processing: 9, Completed: 1}, FailedNumbers: map[Reason]int{ReasonBadRequest: 2}}
	boolean := Layout{State: StateBoolean, Columns: Columns{Status: "sent", Claimed: "taken"}}
	plain := Layout{State: StateBoolean, Columns: Columns{Status: "sent"}}
	times := Layout{State: StateTimestamps, Columns: Columns{Delivered: "sent_at", Failed: "dead_at", Claimed: "until"}}
	null := "\x00"
	for _, c := range []struct {
		layout *Layout
		row    map[string]string // columns that are missing are not known
		want   Status
	}{
		{&words, map[string]string{"status": "PROCESSING"}, Processing},
		{&words, map[string]string{"status": "archived"}, 0},
		{&words, map[string]string{"status": null}, 0},
		{&words, nil, 0},
		{&numbers, map[string]string{"s": "1"}, Completed},
		{&numbers, map[string]string{"s": "2"}, Failed},
		{&numbers, map[string]string{"s": "x"}, 0},
		{&plain, map[string]string{"sent": "f"}, Pending},
		{&plain, map[string]string{"sent": "1"}, Completed},
		{&plain, nil, 0},
		{&boolean, map[string]string{"sent": "t", "taken": "now"}, Completed},
		{&boolean, map[string]string{"sent": "false", "taken": "now"}, Processing},
		{&boolean, map[string]string{"taken": "now"}, Processing},
		{&boolean, map[string]string{"taken": null}, 0},
		{&times, map[string]string{"sent_at": "now", "dead_at": null, "until": null}, Completed},
		{&times, map[string]string{"sent_at": null, "dead_at": "now", "until": null}, Failed},
		{&times, map[string]string{"sent_at": null, "dead_at": null, "until": "now"}, Processing},
		{&times, map[string]string{"sent_at": null, "dead_at": null, "until": null}, Pending},
		{&times, map[string]string{"until": null}, 0},
		{&Layout{State: StateNone}, nil, 0},
	} {
		got := c.layout.StatusOf(func(name string) ([]byte, bool) {
			text, known := c.row[name]
			if text == null {
				return nil, known
			}
			return []byte(text), known
		})
		if got != c.want {
			t.Errorf("a row with %q has the status %s, want %s", c.row, got, c.want)
		}
	}
}
