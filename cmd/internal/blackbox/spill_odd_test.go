package blackbox

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// odd are writes with a group that the relay's table may refuse.
type odd struct {
	name   string
	host   host
	make   func(t *testing.T, h host) string
	column string // column type of the body
	group  string // JSON text of the group, inside a literal of the database
	body   string // format of such a literal
}

// A message group may not exist in the database's encoding, or may not be valid text. While
// it is spilled it delays no other group, and it is delivered once its receiver is back.
// With on-failed: block, FAILED is written and the group is blocked.
func TestOddGroupsDelayNoOtherGroup(t *testing.T) {
	t.Parallel()
	plain := func(t *testing.T, h host) string { return h.database(t) }
	var all []odd
	for _, version := range servers.Spread(t, servers.Versions()) {
		h := postgresHost(version)
		latin := func(t *testing.T, _ host) string { return servers.Database(t, version, "ENCODING 'LATIN1' LOCALE 'C'") }
		all = append(all,
			odd{"latin1 " + h.name, h, latin, "text", `"kunde-\u20ac%s"`, `'%s'`},
			odd{"bytes " + h.name, h, plain, "bytea", `{"of":"~%s"}`, `decode(replace(encode(convert_to('%s', 'UTF8'), 'hex'), '7e', 'ff'), 'hex')`})
	}
	for _, f := range servers.Spread(t, servers.Flavours()) {
		h := mysqlHost(f)
		all = append(all, odd{"bytes " + h.name, h, plain, "longblob", `{"of":"~%s"}`, `UNHEX(REPLACE(HEX('%s'), '7E', 'FF'))`})
	}
	if len(all) == 0 {
		t.Skip("none of the selected servers")
	}
	for _, o := range all {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			testOddGroups(t, &o)
		})
	}
}

func testOddGroups(t *testing.T, o *odd) {
	const rows, first = 2000, 1_000_000
	database := o.make(t, o.host)
	at, now := "timestamptz", "now()"
	if !o.host.kind.postgres {
		at, now = "datetime(6)", "now(6)"
	}
	o.host.kind.run(t, database, fmt.Sprintf(deliveriesTable, at, now, o.column))
	c := connect(t, database)
	to := sinktest.NewReceiver(t)
	// Every tenth row is in the group on which the receiver fails, and every hundredth in a
	// group whose rows it rejects.
	away := func(r *sinktest.Request) sinktest.Answer {
		n, _ := strconv.Atoi(strings.TrimPrefix(r.Items[0].ID, "shop-"))
		switch {
		case n%10 == 1:
			return sinktest.Answer{Status: http.StatusServiceUnavailable}
		case n%100 == 2:
			return sinktest.Answer{Status: http.StatusUnprocessableEntity}
		}
		return sinktest.Answer{Status: http.StatusNoContent}
	}
	to.Script(away)
	config := fmt.Sprintf(hooks, nameFor(database), database, to.URL()+"/orders", signingKey, adminKey) + "dispatch: {on-failed: block, backoff: {max: 1s}}\n"
	r := start(t, strings.Replace(config, "max-retries: 1,", "max-retries: 1, global-buffer-size: 100,", 1))
	r.waitFor("source connected")
	for from := first + 1; from <= first+rows; from += 100 {
		var values []string
		for n := from; n < from+100; n++ {
			group := fmt.Sprintf(`"well %d"`, n%20)
			switch {
			case n%10 == 1:
				group = fmt.Sprintf(o.group, "away")
			case n%100 == 2:
				group = fmt.Sprintf(o.group, "rejected")
			}
			values = append(values, fmt.Sprintf("(%d, "+o.body+")", n, fmt.Sprintf(`{"id": %d, "group": %s}`, n, group)))
		}
		o.host.kind.run(t, database, `INSERT INTO "Deliveries" (row_key, body) VALUES `+strings.Join(values, ", "))
	}
	began := time.Now()
	const sick, rejected = rows / 10, rows / 100
	arrive(t, to, rows-sick-rejected)
	t.Logf("%d rows of healthy groups arrived %s after the last was written", rows-sick-rejected, time.Since(began).Round(time.Millisecond))
	within(t, testTimeout, func() string {
		if n := r.metric(`sluicebox_spilled_rows{sink="hooks"}`); n < sick/2 {
			return fmt.Sprintf("%.0f rows are spilled of %d", n, sick)
		}
		if n := count(t, c, `SELECT count(*) FROM "Deliveries" WHERE dead_at IS NOT NULL`); n != 1 {
			return fmt.Sprintf("%d rows FAILED, want the one that blocks", n)
		}
		return ""
	})
	if n := r.metric(`sluicebox_unspillable_rows{sink="hooks"}`); n > 0 {
		t.Errorf("%.0f rows cannot be spilled, want 0", n)
	}
	to.Script(func(req *sinktest.Request) sinktest.Answer {
		if a := away(req); a.Status != http.StatusServiceUnavailable {
			return a
		}
		return sinktest.Answer{Status: http.StatusNoContent}
	})
	arrive(t, to, rows-rejected)
	last := 0
	for _, got := range to.Accepted() {
		if n, _ := strconv.Atoi(strings.TrimPrefix(got.ID, "shop-")); n%10 == 1 {
			if n <= last {
				t.Errorf("row %d of the odd group arrived after row %d", n, last)
			}
			last = n
		}
	}
	expectStop(t, r)
}
