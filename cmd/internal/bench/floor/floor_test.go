package floor_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
)

// eachShape runs a test on each server, with each layout, in both modes.
func eachShape(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	for _, k := range kinds() {
		for _, layout := range []string{"flowcatalyst", "outbox-messages"} {
			for _, bulk := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/bulk=%t", k.name, layout, bulk), func(t *testing.T) {
					t.Parallel() // a test mostly waits
					test(t, newPlace(t, k, layout, bulk))
				})
			}
		}
	}
}

func TestEachRowIsDeliveredOnceAndCompleted(t *testing.T) {
	eachShape(t, func(t *testing.T, p *place) {
		to := newReceiver(t)
		p.insert(numbered("before", 1)...)
		p.start(to)
		ids := append(numbered("large", 250), `q"\',{}`, "", "NULL")
		p.insert(ids[:250]...)
		for _, id := range ids[250:] {
			p.insert(id)
		}
		ids = append(ids, "before 0")
		to.await(t, len(ids))
		p.awaitCompleted(len(ids))
		p.awaitConfirmed()
		p.stop()
		to.expect(t, p.cfg, ids)
	})
}

// TestRowIsClaimedAgainUntilItCanBe: a row that is not pending looks like a row that is not
// yet visible.
func TestRowIsClaimedAgainUntilItCanBe(t *testing.T) {
	eachShape(t, func(t *testing.T, p *place) {
		to := newReceiver(t)
		p.start(to)
		p.exec("ALTER TABLE " + p.table() + " ALTER status SET DEFAULT " + p.failed)
		p.insert("late")
		p.exec("ALTER TABLE " + p.table() + " ALTER status SET DEFAULT " + p.pending)
		p.insert(numbered("other", 3)...)
		if p.cfg.Bulk { // otherwise they wait for their turn
			to.await(t, 3)
			if slices.Contains(to.sorted(), "late") {
				t.Error("a row was delivered that was not pending")
			}
		}
		p.exec("UPDATE " + p.table() + " SET status = " + p.pending + " WHERE id = 'late'")
		to.await(t, 4)
		p.awaitCompleted(4)
		p.stop()
	})
}

// TestWithoutClaimsRowIsCompletedOnceItIsVisible: without claims a row is posted at once, and its
// completion waits until the row is there. A row that is not pending looks like one that is not
// yet visible.
func TestWithoutClaimsRowIsCompletedOnceItIsVisible(t *testing.T) {
	eachShape(t, func(t *testing.T, p *place) {
		p.cfg.NoClaims = true
		to := newReceiver(t)
		p.start(to)
		p.insert(numbered("large", 250)...)
		p.exec("ALTER TABLE " + p.table() + " ALTER status SET DEFAULT " + p.failed)
		p.insert("late")
		to.await(t, 251)
		if got := p.count("id = 'late' AND status = " + p.failed); got != 1 {
			t.Errorf("%d rows are as they were, want 1", got)
		}
		p.exec("UPDATE " + p.table() + " SET status = " + p.pending + " WHERE id = 'late'")
		p.awaitCompleted(251)
		p.awaitConfirmed()
		p.stop()
		to.expect(t, p.cfg, append(numbered("large", 250), "late"))
	})
}

func TestRefusalEndsRun(t *testing.T) {
	eachShape(t, func(t *testing.T, p *place) {
		to := newReceiver(t)
		to.answer(func(w http.ResponseWriter) { http.Error(w, "no room", http.StatusInsufficientStorage) })
		p.start(to)
		p.insert("refused")
		err := p.wait()
		if err == nil || !strings.Contains(err.Error(), "507 Insufficient Storage: no room") ||
			!strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), p.cfg.Endpoint) {
			t.Errorf("the error is %v; want the row, the endpoint and its answer", err)
		}
		if got := p.count("status = " + p.processing); got != 1 {
			t.Errorf("%d rows are claimed, want 1", got)
		}
	})
}

func TestContextEndsRunThatWaitsForAnAnswer(t *testing.T) {
	eachShape(t, func(t *testing.T, p *place) {
		to := newReceiver(t)
		to.hang()
		p.start(to)
		p.insert("asked")
		to.await(t, 1)
		p.stop()
	})
}

func TestRunSaysWhatItCannotRead(t *testing.T) {
	pg, maria := kinds()[0], kinds()[len(kinds())-1]
	for _, c := range []struct {
		name   string
		on     kind
		change func(p *place)
		want   string
	}{
		{"no slot", pg, func(p *place) { p.cfg.Slot = "missing" }, "slot missing"},
		{"no table", pg, func(p *place) { p.cfg.Table = "public.missing" }, "public.missing"},
		{"no publication", pg, func(p *place) { p.cfg.Publication = "missing" }, "publication missing"},
		{"another table", pg, func(p *place) {
			p.exec("CREATE TABLE other (id text PRIMARY KEY, payload text)",
				`ALTER PUBLICATION "The ""Rows""" ADD TABLE other`, "INSERT INTO other VALUES ('1', '{}')")
		}, `"public"."other"`},
		{"a column is not published", pg, func(p *place) {
			p.exec(`ALTER PUBLICATION "The ""Rows""" SET TABLE ` + p.table() + " (id)")
			p.insert("1")
		}, "columns id and payload"},
		{"no payload", pg, func(p *place) { p.exec("INSERT INTO " + p.table() + " (id) VALUES ('empty')") }, "row empty"},
		{"no table", maria, func(p *place) { p.cfg.Table = "missing" }, "no table missing"},
		{"no payload", maria, func(p *place) { p.exec("INSERT INTO " + p.table() + " (id) VALUES ('empty')") }, "row empty"},
		{"a type of another kind", maria, func(p *place) {
			p.exec("ALTER TABLE "+p.table()+" ADD COLUMN place point NULL", "INSERT INTO "+p.table()+" (id, payload) VALUES ('1', '{}')")
		}, "column 6 of the rows"},
	} {
		t.Run(c.on.name+"/"+c.name, func(t *testing.T) {
			p := newPlace(t, c.on, "flowcatalyst", true)
			p.cfg.Endpoint = newReceiver(t).url
			c.change(p)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := floor.Run(ctx, p.cfg, func() {})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %s in it", err, c.want)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := floor.Config{
		URL: "postgres://me:secret@localhost/shop", Slot: "s", Publication: "p", Table: "public.t", Layout: "flowcatalyst",
		Endpoint: "http://localhost:1/x", Bulk: true, Batch: 1, Senders: 1,
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want   string
		change func(*floor.Config)
	}{
		{"URL: ", func(c *floor.Config) { c.URL = "sqlite:me:secret@localhost" }},
		{"URL: ", func(c *floor.Config) { c.URL = "mysql://me:secret@localhost" }},
		{"From: ", func(c *floor.Config) { c.URL, c.From = "mysql://me:secret@localhost/shop", "everything" }},
		{"URL: ", func(c *floor.Config) { c.URL, c.From = "mongodb://me:secret@localhost", "1.1" }},
		{"From: ", func(c *floor.Config) { c.URL, c.From = "mongodb://me:secret@localhost/shop", "now" }},
		{"Slot: ", func(c *floor.Config) { c.Slot = "a b" }},
		{"Publication: ", func(c *floor.Config) { c.Publication = "" }},
		{"Table: ", func(c *floor.Config) { c.Table = "" }},
		{"Layout: ", func(c *floor.Config) { c.Layout = "custom" }},
		{"Endpoint: ", func(c *floor.Config) { c.Endpoint = "localhost:80" }},
		{"Batch: ", func(c *floor.Config) { c.Batch = 0 }},
		{"Senders: ", func(c *floor.Config) { c.Senders = 0 }},
	} {
		bad := good
		c.change(&bad)
		err := floor.Run(context.Background(), bad, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("the error is %v, want %q in it and no password", err, c.want)
		}
	}
	good.Bulk, good.Batch, good.Senders = false, 0, 0
	if err := good.Validate(); err != nil {
		t.Errorf("one by one: %v", err)
	}
}
