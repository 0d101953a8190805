package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// hostile has what a terminal obeys, in 7 and 8 bits, what reverses the text, and what hides in it.
const hostile = "a\x1b[2J\x1b]0;title\a\rb\u009b31m\u202ec\u2066d\u200be\u007ff\bg\U000e0041h"

// TestNothingCommandsATerminal: whatever rows and receivers hold, the log and the commands print no
// control character and no other rune that does not print.
func TestNothingCommandsATerminal(t *testing.T) {
	t.Parallel()
	d := sqliteTable(t, `CREATE TABLE letters (id TEXT PRIMARY KEY, kind TEXT, grp TEXT, body TEXT, status TEXT DEFAULT 'NEW', why TEXT, n INTEGER DEFAULT 0)`)
	to := sinktest.NewReceiver(t)
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		status := http.StatusBadRequest
		if strings.Contains(string(r.Body), "wait") {
			status = http.StatusServiceUnavailable
		}
		return sinktest.Answer{Status: status, Body: []byte(hostile)}
	})
	text := fmt.Sprintf(`
name: %s
source: {url: %q}
outboxes:
  - {table: letters, layout: custom, sink: hooks, state: words, order-by: [id], words: {pending: NEW, completed: DONE, failed: DEAD},
     columns: {id: id, kind: kind, group: grp, payload: body, status: status, error: why, retry-count: n}}
sinks:
  hooks: {type: webhook, url: %q, max-retries: 0, headers: {X-Group: '{group}'}, backoff: {initial: 50ms, max: 1s}}
admin: {listen: %s}
log: {level: debug}
`, nameFor(d.source), d.source, to.URL(), adminKey)
	r := start(t, text)
	r.waitFor("source connected")
	for _, row := range []string{"dead", "wait"} {
		d.exec(fmt.Sprintf(`INSERT INTO letters (id, kind, grp, body) VALUES ('%s', '%s', '%s', '%s')`, hostile+row, hostile, hostile+row, hostile+row))
	}
	r.waitFor("row marked FAILED")
	r.waitFor("circuit breaker opened")
	file := configFile(t, strings.ReplaceAll(text, adminKey, strings.TrimPrefix(r.admin, "http://")))
	for _, args := range [][]string{
		{"deadletters", "list"}, {"deadletters", "list", "--json"}, {"deadletters", "show", hostile + "dead"}, {"deadletters", "show", "--json", hostile + "dead"}, {"lanes", "list"}, {"lanes", "list", "--json"},
		{"explain", "--outbox", "letters", hostile + "dead"}, {"explain", "--outbox", "letters", hostile + "dead", "--json"}, {"explain", "--outbox", "letters", hostile + "wait"}, {"explain", "--outbox", "letters", hostile + "wait", "--json"}, {"explain", "--outbox", "letters", hostile},
		{"lanes", "pause", "--outbox", "letters", "--group", hostile + "wait", "--reason", "because"}, {"lanes", "list"}, {"actions"}, {"actions", "--json"},
		{"lanes", "skip", "--outbox", hostile, "--kind", hostile, "--group", hostile, "--reason", hostile}, {"status"}, {"status", "--json"}, {"routes", "list"}, {"doctor"},
		{"deadletters", "requeue", "--outbox", "letters", hostile + "dead", "--yes"}, {"lanes", hostile}, {"config", "check"},
	} {
		out, stderr, code := command(t, nil, append(args, "-c", file)...)
		shows := args[0] == "explain" || args[0] == "deadletters" && args[1] != "requeue"
		if out+stderr == "" || strings.Contains(stderr, " --help") && args[1] != hostile || shows && !strings.Contains(out+stderr, "31m") {
			t.Errorf("%.30q exits with %d: %s%s", args, code, out, stderr)
		}
		expectPrintable(t, fmt.Sprintf("%.40q", args), out+stderr)
	}
	d.exec("UPDATE letters SET status = 'NEW', why = NULL, n = 0")
	p := startTap(t, text)
	for i := range 3 {
		d.exec(fmt.Sprintf(`INSERT INTO letters (id, kind, grp, body) VALUES ('%s%d', '%s', '%s', '%s')`, hostile, i, hostile, hostile, hostile))
	}
	within(t, testTimeout, func() string {
		if strings.Count(p.printed(), "letters") < 3 {
			return "tap prints " + p.printed()
		}
		return ""
	})
	expectPrintable(t, "tap", p.printed())
	r.stop()
	expectPrintable(t, "the log", r.said())
	again := start(t, strings.Replace(text, "level: debug", "format: json", 1))
	again.waitFor("row marked FAILED")
	again.stop()
	expectPrintable(t, "the log in JSON", again.said())
}

// expectPrintable checks that a text has line breaks and printable characters only.
func expectPrintable(t *testing.T, what, text string) {
	t.Helper()
	if at := strings.IndexFunc(text, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); at >= 0 {
		t.Errorf("%s prints %q", what, text[max(0, at-60):min(len(text), at+40)])
	}
}
