package outboxtest

import (
	"context"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// Diagnosis is a database of RunDiagnose, with two tables or collections that have the columns id,
// payload and extra. Table whole takes every row. Table lacking needs a value in extra and in shard.
type Diagnosis struct {
	Diagnose func(ctx context.Context, url, application string, outboxes []*store.Outbox) ([]store.Finding, error)
	URL      string
	// Powerless is the URL of an account that may neither read nor insert, "" if there are no accounts.
	Powerless string
	// Apply does what a remedy says.
	Apply func(remedy string)
}

// RunDiagnose checks what Diagnose says of tables, and that its remedies suffice.
func RunDiagnose(t *testing.T, d *Diagnosis) {
	t.Helper()
	boxes := map[string]*store.Outbox{}
	for _, name := range []string{"whole", "lacking", "absent"} {
		boxes[name] = &store.Outbox{Name: name, Table: name, Kind: "k", Layout: store.Layout{
			Name: "custom", State: store.StateNone, Columns: store.Columns{ID: "id", Payload: "payload"},
			Attributes: []store.AttributeColumn{{Column: "extra", Name: "extra"}},
		}}
	}
	ask := func(url string, names ...string) (found []store.Finding) {
		t.Helper()
		var list []*store.Outbox
		for _, name := range names {
			list = append(list, boxes[name])
		}
		found, err := d.Diagnose(rigs.Context(t), url, "suite", list)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	const fine = "rows can be written"
	if found := ask(d.URL, "absent", "whole"); len(found) != 1 || found[0].Text != fine || found[0].Subject != "outbox whole" {
		t.Errorf("no table, and one that takes every row: %+v", found)
	}
	found := ask(d.URL, "lacking")
	if len(found) != 2 || found[0].Grade != store.GradeAdvice || !strings.Contains(found[0].Text, "without the attribute extra") ||
		found[1].Grade != store.GradeFault || !strings.Contains(found[1].Text, "shard") {
		t.Fatalf("columns that need a value: %+v", found)
	}
	for i := range found {
		d.Apply(strings.TrimPrefix(found[i].Remedy, "let each client send it, or: "))
	}
	if found := ask(d.URL, "lacking"); len(found) != 1 || found[0].Text != fine {
		t.Errorf("after the remedies: %+v", found)
	}
	if d.Powerless == "" {
		return
	}
	found = ask(d.Powerless, "whole")
	if len(found) != 1 || found[0].Grade != store.GradeFault || !strings.Contains(strings.ToLower(found[0].Text), "insert rows of") {
		t.Fatalf("without rights: %+v", found)
	}
	d.Apply(found[0].Remedy)
	if found := ask(d.Powerless, "whole"); len(found) != 1 || found[0].Text != fine {
		t.Errorf("with the rights of the remedy: %+v", found)
	}
}
