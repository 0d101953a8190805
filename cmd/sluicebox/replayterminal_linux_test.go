package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

// On a terminal one line shows the progress of a replay, cut to the width. Permanent
// lines are written above it.
func TestReplayOnATerminal(t *testing.T) {
	path := file(t, good)
	tty, person := terminalPair(t, 60)
	f := &fakeReplays{look: func(since time.Duration) ([]admin.Replay, error) {
		r := admin.Replay{ID: jobID, State: "playing", Reason: fromTheLog, Rows: 1000, Sent: 500, Refused: 2, Remaining: 498}
		if since > time.Second/2 {
			r.State, r.Sent, r.Remaining = "done", 998, 0
		}
		return []admin.Replay{r}, nil
	}}
	code := make(chan int, 1)
	go func() {
		p := program{stdout: &lockedBuffer{}, stderr: tty, signals: make(chan os.Signal), exit: os.Exit, relay: replaying(f)}
		code <- p.main([]string{"replay", "--from=a", "-c", path})
	}()
	seen := ""
	for buffer := make([]byte, 4096); !strings.Contains(seen, "lists them"); {
		n, err := person.Read(buffer)
		if err != nil {
			t.Fatalf("%v; the terminal shows %q", err, seen)
		}
		seen += string(buffer[:n])
	}
	want := "replay abcdefghijklm\r\n" +
		"\r\x1b[Kreplay abcdefghijklm: from the log: rows deleted since are sent too\r\n" +
		"\r[##########----------] 50%  502/1 000  2 refused\x1b[K" +
		"\r[####################] 100%  1 000/1 000  done  2 refused\x1b[K\r\n" +
		"sluicebox: replay abcdefghijklm: 2 rows refused\r\n"
	if !strings.HasPrefix(seen, want) {
		t.Errorf("the terminal shows %q, want %q", seen, want)
	}
	if got := <-code; got != 1 {
		t.Errorf("exit %d", got)
	}
}
