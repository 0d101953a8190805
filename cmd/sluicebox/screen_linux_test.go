package main

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

// On a terminal each status replaces the previous one, cut to the screen, and Ctrl-C
// keeps the last one.
func TestStatusOnATerminal(t *testing.T) {
	from := &fakeStatus{status: leadingStatus()}
	tty, person := terminalPair(t, 60)
	control, err := person.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = control.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 15, Col: 60})
	})
	if err != nil {
		t.Fatal(err)
	}
	shown := make(chan string, 1000)
	go func() {
		defer close(shown)
		buffer := make([]byte, 4096)
		for {
			n, err := person.Read(buffer)
			if err != nil {
				return
			}
			shown <- string(buffer[:n])
		}
	}()
	var why lockedBuffer
	interrupt := watching(tty, &why, serveStatus(t, from))
	seen := ""
	until := func(text string) {
		t.Helper()
		end := time.After(30 * time.Second)
		for !strings.Contains(seen, text) {
			select {
			case more := <-shown:
				seen += more
			case <-end:
				t.Fatalf("the terminal does not show %q but %q", text, seen)
			}
		}
	}
	until("\x1b[J")
	frame, rest, _ := strings.Cut(seen, "\x1b[J")
	if !strings.HasPrefix(frame, "\x1b[2J\x1b[Hrelay       shop, version 1.2.3, up 2h, host process 7\x1b[K\r\n") {
		t.Errorf("the first status is drawn as %q", frame)
	}
	lines := strings.Split(strings.TrimSuffix(frame, "\r\n"), "\r\n")
	if len(lines) != 14 {
		t.Errorf("%d lines on a terminal of 15: %q", len(lines), lines)
	}
	for _, line := range lines {
		text := strings.TrimSuffix(strings.TrimPrefix(line, "\x1b[2J\x1b[H"), "\x1b[K")
		if n := len([]rune(text)); n > 60 {
			t.Errorf("%d columns on a terminal of 60: %q", n, text)
		}
	}
	from.change(func() { from.status = admin.RelayStatus{Name: "moved"} })
	seen = rest
	until("\x1b[Hrelay       moved")
	until("state       ready, not leading\x1b[K\r\n\x1b[J")
	if strings.Contains(seen, "\x1b[2J") {
		t.Errorf("the screen is cleared again: %q", seen)
	}
	if code := interrupt(); code != 0 || why.String() != "" {
		t.Errorf("exit %d, %s", code, why.String())
	}
}
