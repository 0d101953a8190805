package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
)

// The command shadow, and run with mode: shadow, print the report at the end. Neither starts a relay.
func TestShadowPrintsItsReport(t *testing.T) {
	const text = "source: {url: 'postgres://u@h/d'}\noutboxes: [{table: t, layout: flowcatalyst, kind: EVENT, sink: s}]\nsinks: {s: {type: webhook, url: 'http://127.0.0.1:1/'}}\n"
	plain, inMode := file(t, text), file(t, "mode: shadow\n"+text)
	report := &shadow.Report{Since: time.Now().Add(-time.Minute), Until: time.Now(), Outboxes: []shadow.OutboxReport{{Outbox: "t", Counts: shadow.Counts{Seen: 3, Stuck: 1}}}}
	r := backend{shadow: func(context.Context, app.Options) (*shadow.Report, error) { return report, nil }}
	for _, args := range [][]string{{"shadow", "-c", plain}, {"run", "-c", inMode}} {
		if got := try(t, r, nil, args...); got.code != 0 || !strings.Contains(got.stdout, "rows                 3 new, 0 delivered") || !strings.Contains(got.stdout, "STUCK                1 rows") {
			t.Errorf("%v printed, with code %d:\n%s%s", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := try(t, r, nil, "shadow", "--json", "-c", plain); got.code != 0 || !strings.Contains(got.stdout, `"stuck": 1`) {
		t.Errorf("--json printed %s%s", got.stdout, got.stderr)
	}
}

// A shadow of SQLite is refused before it connects.
func TestShadowOfSQLite(t *testing.T) {
	path := file(t, "source: {url: 'sqlite:///nowhere/shop.db'}\noutboxes: [{table: t, layout: flowcatalyst, kind: EVENT, sink: s}]\nsinks: {s: {type: webhook, url: 'http://127.0.0.1:1/'}}\nadmin: {listen: ''}\n")
	got := try(t, backend{shadow: app.Shadow}, nil, "shadow", "-c", path)
	if got.code != exitConfig || !strings.Contains(got.stderr, "no log of updates") {
		t.Errorf("code %d: %s", got.code, got.stderr)
	}
}

func TestStatusOfAShadow(t *testing.T) {
	s := &admin.RelayStatus{Name: "shop", Ready: true, Shadow: &shadow.Report{Since: time.Now(), Until: time.Now(), Outboxes: []shadow.OutboxReport{{Outbox: "t"}}}}
	if text := statusText(s, time.Now()); !strings.Contains(text, "OUTBOX               t\n") || !strings.Contains(text, "ready, watching another processor") {
		t.Errorf("the status is\n%s", text)
	}
}
