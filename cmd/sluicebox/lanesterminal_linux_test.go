package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminalPair returns a terminal and the end of the person in front of it.
func terminalPair(t *testing.T, columns uint16) (tty, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal is to be had: ", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	control, err := person.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	err = control.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
		if err == nil {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return tty, person
}

func TestConfirm(t *testing.T) {
	for answer, tt := range map[string]struct {
		did  int
		code int
		says string
	}{
		"y\n": {1, 0, ""}, "YES \n": {1, 0, ""},
		"n\n": {0, 1, "not confirmed; nothing was changed\n"}, "\n": {0, 1, "not confirmed"}, "yesterday\n": {0, 1, "not confirmed"},
		"\x04": {0, 1, "no answer; nothing was changed\n"}, // end of file
	} {
		m := &recordedLetters{rows: map[string][]string{"outbox_events": ids(3)}, timed: true}
		path := serveLetters(t, m)
		tty, person := terminalPair(t, 80)
		if _, err := io.WriteString(person, answer); err != nil {
			t.Fatal(err)
		}
		got := tryWith(t, program{stdin: tty}, "deadletters", "discard", "--all", "--outbox=outbox_events", "-c", path)
		if got.code != tt.code || len(m.did) != tt.did || !strings.Contains(got.stderr, tt.says) ||
			!strings.Contains(got.stderr, "3 FAILED rows will be DELETED from the outbox table permanently, including the payload.\nContinue? [y/N] ") {
			t.Errorf("%q: exit %d, did %q, %q", answer, got.code, m.did, got.stderr)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	m := &recordedLetters{rows: map[string][]string{"outbox_events": ids(3)}}
	got := tryWith(t, program{stdin: null}, "deadletters", "discard", "--all", "--outbox=outbox_events", "-c", serveLetters(t, m))
	if got.code != 64 || len(m.did) > 0 || !strings.Contains(got.stderr, "stdin is not a terminal") {
		t.Errorf("exit %d, did %q, %q", got.code, m.did, got.stderr)
	}
}

// TestConfirmInterrupted sends a signal instead of an answer.
func TestConfirmInterrupted(t *testing.T) {
	m := &recordedLetters{rows: map[string][]string{"outbox_events": ids(3)}}
	path := serveLetters(t, m)
	tty, person := terminalPair(t, 80)
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	got := tryWith(t, program{stdin: tty, signals: signals}, "deadletters", "discard", "--all", "--outbox=outbox_events", "-c", path)
	if got.code != 1 || len(m.did) > 0 || !strings.Contains(got.stderr, "nothing was changed") && !strings.Contains(got.stderr, "the rows stay FAILED") {
		t.Errorf("exit %d, did %q, %q", got.code, m.did, got.stderr)
	}
	_, _ = io.WriteString(person, "\n") // ends the read, if it started
}

// TestTableOnATerminal checks that only the last column is cut.
func TestTableOnATerminal(t *testing.T) {
	for columns, want := range map[uint16]string{
		40: "ID          ERROR\n0123456789  " + strings.Repeat("x", 27) + "…\n",
		5:  "ID          ERROR\n0123456789  " + strings.Repeat("x", 19) + "…\n",
		0:  "ID          ERROR\n0123456789  " + strings.Repeat("x", 60) + "\n",
	} {
		tty, person := terminalPair(t, columns)
		if err := printTable(tty, []string{"ID", "ERROR"}, [][]string{{"0123456789", strings.Repeat("x", 60)}}); err != nil {
			t.Fatal(err)
		}
		shown := bufio.NewReader(person)
		got := ""
		for range 2 {
			line, err := shown.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			got += strings.ReplaceAll(line, "\r\n", "\n")
		}
		if got != want {
			t.Errorf("%d columns show %q, want %q", columns, got, want)
		}
	}
}
