package storetest

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

func (s *suite) testSettle(t *testing.T) {
	b := s.start(t, 0)
	c := &s.layout.Columns
	b.insert(t, "a", row("done"), row("retried"), row("dead"), row("other"))
	b.take(t, "a", "done", "retried", "dead", "other")
	claimed := b.read(t, "a", "retried").Claimed
	at := now().Add(time.Hour)
	results := b.settle(t,
		store.Outcome{Ref: ref("a", "dead"), Status: store.Failed, RetryCount: 4, Error: "given up", At: at},
		store.Outcome{Ref: ref("a", "done"), Status: store.Completed, RetryCount: 9, At: at},
		store.Outcome{Ref: ref("a", "retried"), Status: store.Pending, RetryCount: 2, Error: "try later", At: at},
	)
	for i, r := range results {
		if r != store.Written {
			t.Errorf("outcome %d: %d", i, r)
		}
	}

	if !s.stateful() {
		return
	}
	want := func(id string, status store.Status, retries int, text string, claimed, settled time.Time) {
		t.Helper()
		got := b.read(t, "a", id)
		if !got.Exists || got.Status != status {
			t.Errorf("row %s: %+v", id, got)
		}
		if c.RetryCount != "" && got.RetryCount != retries {
			t.Errorf("row %s has retry count %d, want %d", id, got.RetryCount, retries)
		}
		if c.Error != "" && got.Error != text {
			t.Errorf("row %s has error %q, want %q", id, got.Error, text)
		}
		if c.Claimed != "" && !near(got.Claimed, claimed) {
			t.Errorf("row %s has the time %s, want %s", id, got.Claimed, claimed)
		}
		if c.Settled != "" && !near(got.Settled, settled) {
			t.Errorf("row %s was settled at %s, want %s", id, got.Settled, settled)
		}
	}
	ended := at // one column may hold both times
	if c.Settled != "" {
		ended = claimed
	}
	want("dead", store.Failed, 4, "given up", ended, at)
	retriedAt := givenBackAt(&s.layout, claimed)
	want("retried", store.Pending, 2, "try later", retriedAt, time.Time{})
	want("other", b.claimedStatus(), 0, "", claimed, time.Time{})
	if s.layout.DeleteDelivered {
		if b.read(t, "a", "done").Exists {
			t.Error("the delivered row is still there")
		}
	} else {
		want("done", store.Completed, 0, "", ended, at)
	}

	// A retry without an error keeps the text.
	b.settle(t, store.Outcome{Ref: ref("a", "retried"), Status: store.Pending, RetryCount: 3, At: at})
	want("retried", store.Pending, 3, "try later", retriedAt, time.Time{})
	if a := b.claim(t, store.ClaimRow{Ref: ref("a", "retried")})[0]; c.RetryCount != "" && a.RetryCount != 3 {
		t.Errorf("the claim says retry count %d", a.RetryCount)
	}
}

// givenBackAt returns the claim time of a row that becomes PENDING again. Without a word or number
// for PROCESSING the time would hold the row.
func givenBackAt(l *store.Layout, claimed time.Time) time.Time {
	if l.Columns.Status != "" && l.State != store.StateBoolean && !l.Lease {
		return claimed
	}
	return time.Time{}
}

func (b *bench) claimedStatus() store.Status {
	if b.claimWrites() {
		return store.Processing
	}
	return store.Pending
}

func (s *suite) testSettleConditional(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"), row("3"))
	b.take(t, "a", "1", "2", "3")
	first := []store.Outcome{
		{Ref: ref("a", "1"), Status: store.Failed, RetryCount: 1, Error: "first", At: now()},
		{Ref: ref("a", "2"), Status: store.Completed, At: now()},
	}
	b.settle(t, first...)
	before1, before2 := b.read(t, "a", "1"), b.read(t, "a", "2")
	b.db.Delete(t, "a", "3")

	done := store.WasSettled
	if s.layout.DeleteDelivered {
		done = store.WasGone
	}

	want := []store.SettleResult{store.WasSettled, done, store.WasGone, store.WasGone}
	for _, status := range []store.Status{store.Completed, store.Failed, store.Pending} {
		var again []store.Outcome
		for _, id := range []string{"1", "2", "3", "never there"} {
			again = append(again, store.Outcome{Ref: ref("a", id), Status: status, RetryCount: 5, Error: "second", At: now()})
		}
		for i, got := range b.settle(t, again...) {
			want := want[i]
			if !s.stateful() { // the records know FAILED rows, and nothing knows any other row
				if want = store.Written; again[i].ID == "1" || status == store.Pending {
					want = store.WasSettled
				}
			}
			if got != want {
				t.Errorf("%s for row %s: %d, want %d", status, again[i].ID, got, want)
			}
		}
	}

	if after := b.read(t, "a", "1"); after != before1 {
		t.Errorf("a later outcome changed %+v into %+v", before1, after)
	}
	if after := b.read(t, "a", "2"); after != before2 {
		t.Errorf("a later outcome changed %+v into %+v", before2, after)
	}
}

// testSettleTwice settles one row several times in one call: the outcomes apply in order.
func (s *suite) testSettleTwice(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"))
	b.insert(t, "b", row("1"))
	b.take(t, "a", "1", "2")
	got := b.settle(t,
		store.Outcome{Ref: ref("a", "1"), Status: store.Pending, RetryCount: 1, Error: "e1", At: now()},
		store.Outcome{Ref: ref("a", "2"), Status: store.Failed, RetryCount: 1, At: now()},
		store.Outcome{Ref: ref("a", "1"), Status: store.Pending, RetryCount: 2, Error: "e2", At: now()},
		store.Outcome{Ref: ref("b", "1"), Status: store.Completed, At: now()},
		store.Outcome{Ref: ref("a", "1"), Status: store.Failed, RetryCount: 3, Error: "e3", At: now()},
		store.Outcome{Ref: ref("a", "2"), Status: store.Completed, At: now()},
		store.Outcome{Ref: ref("a", "2"), Status: store.Failed, At: now()},
	)

	w, x := store.Written, store.WasSettled
	if !s.stateful() {
		x = w
	}

	for i, want := range []store.SettleResult{w, w, w, w, w, x, x} {
		if got[i] != want {
			t.Errorf("outcome %d: %d, want %d", i, got[i], want)
		}
	}

	if !s.stateful() {
		return
	}

	for _, id := range []string{"1", "2"} {
		if found := b.read(t, "a", id); found.Status != store.Failed {
			t.Errorf("row %s: %+v", id, found)
		}
	}

	if found := b.read(t, "a", "1"); s.layout.Columns.Error != "" && (found.Error != "e3" || found.RetryCount != 3) {
		t.Errorf("row 1: %+v", found)
	}
}

func (s *suite) testReasons(t *testing.T) {
	b := s.start(t, 0)
	reasons := []store.Reason{
		store.ReasonNone, store.ReasonBadRequest, store.ReasonUnauthorized,
		store.ReasonForbidden, store.ReasonGateway, store.ReasonInternal,
	}
	var outcomes []store.Outcome
	for _, r := range reasons {
		id := string(rune('a' + r))
		b.insert(t, "a", row(id))
		b.take(t, "a", id)
		outcomes = append(outcomes, store.Outcome{Ref: ref("a", id), Status: store.Failed, Reason: r, At: now()})
	}

	b.settle(t, outcomes...)
	for i, r := range reasons {
		if got := b.read(t, "a", outcomes[i].ID); got.Code != s.layout.FailedNumber(r) || got.Status != store.Failed {
			t.Errorf("reason %d: %+v, want code %d", r, got, s.layout.FailedNumber(r))
		}
		if a := b.claim(t, store.ClaimRow{Ref: outcomes[i].Ref})[0]; a.Result != store.AlreadySettled {
			t.Errorf("a row with code %d is %s", s.layout.FailedNumber(r), a.Result)
		}
	}
}

func (s *suite) testErrorTexts(t *testing.T) {
	b := s.start(t, 0)
	texts := []string{
		"plain", "quote ' \" \\ $1 ; --", "a\x00b", "\x00", "bad \xff\xfe utf-8 \xc3", "snow ☃ and 𝄞",
		strings.Repeat("long ☃", 1<<18), strings.Repeat("\x00", 10000) + "behind", "line\nbreak\r\ttab",
	}
	var outcomes []store.Outcome
	for i, text := range texts {
		id := string(rune('a' + i))
		b.insert(t, "a", row(id))
		outcomes = append(outcomes, store.Outcome{Ref: ref("a", id), Status: store.Failed, Error: text, At: now()})
	}

	b.settle(t, outcomes...)
	for i, text := range texts {
		got := b.read(t, "a", outcomes[i].ID)
		if got.Status != store.Failed || !utf8.ValidString(got.Error) || strings.ContainsRune(got.Error, 0) {
			t.Errorf("text %d: %+v", i, got)
		}

		clean := strings.ReplaceAll(text, "\x00", "")
		switch {
		case len(text) > 2000 && clean != "behind":
			if n := utf8.RuneCountInString(got.Error); n < 100 || n > 10000 || !strings.HasPrefix(text, strings.TrimRight(got.Error, "…")) {
				t.Errorf("text %d: %d characters are left", i, n)
			}
		case utf8.ValidString(text):
			if got.Error != clean {
				t.Errorf("text %d: %q", i, got.Error)
			}
		default:
			if !strings.HasPrefix(got.Error, "bad ") || !strings.Contains(got.Error, " utf-8 ") {
				t.Errorf("text %d: %q", i, got.Error)
			}
		}
	}
}

// testSettleUnclaimed settles rows that were not claimed.
func (s *suite) testSettleUnclaimed(t *testing.T) {
	b := s.start(t, 0)
	txn := b.insert(t, "a", row("done"), row("dead"), row("retried"), row("deleted"))
	b.db.Delete(t, "a", "deleted")
	call := outcomesOf(txn, "done", "dead", "retried")
	gone := store.Outcome{Ref: ref("a", "deleted"), Txn: txn, Status: store.Completed, At: now()}
	want := []store.SettleResult{store.Written, store.Written, store.Written, store.WasGone}
	for i, got := range b.settle(t, append(call, gone)...) {
		if got != want[i] && (s.stateful() || got != store.Written) {
			t.Errorf("outcome %d: %d, want %d", i, got, want[i])
		}
	}
	b.wantOutcomes(t)
}

// outcomesOf returns an outcome of each status for rows inserted by one transaction.
func outcomesOf(txn store.Txn, done, dead, retried string) []store.Outcome {
	return []store.Outcome{
		{Ref: ref("a", done), Txn: txn, Status: store.Completed, At: now()},
		{Ref: ref("a", dead), Txn: txn, Status: store.Failed, RetryCount: 3, Error: "no", At: now()},
		{Ref: ref("a", retried), Txn: txn, Status: store.Pending, RetryCount: 1, Error: "later", At: now()},
	}
}

// wantOutcomes checks the writes of outcomesOf.
func (b *bench) wantOutcomes(t *testing.T) {
	t.Helper()
	if !b.stateful() {
		return
	}
	if got := b.read(t, "a", "done"); got.Exists == b.layout.DeleteDelivered || got.Exists && got.Status != store.Completed {
		t.Errorf("the delivered row: %+v", got)
	}

	dead, retried := b.read(t, "a", "dead"), b.read(t, "a", "retried")
	if dead.Status != store.Failed || retried.Status != store.Pending {
		t.Errorf("the dead row: %+v, the retried one: %+v", dead, retried)
	}
	if b.layout.Columns.RetryCount != "" && (dead.RetryCount != 3 || retried.RetryCount != 1) {
		t.Errorf("the dead row: %+v, the retried one: %+v", dead, retried)
	}
}

// testSettleOpenTxn settles rows before their transaction commits, together with a visible
// row and a deleted row.
func (s *suite) testSettleOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	seen := b.insert(t, "a", row("seen"))
	txn, commit := b.db.Begin(t, "a", row("done"), row("dead"), row("retried"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before an outcome can see it")
	}

	early := outcomesOf(txn, "done", "dead", "retried")
	others := []store.Outcome{
		{Ref: ref("a", "seen"), Txn: seen, Status: store.Completed, At: now()},
		{Ref: ref("a", "never there"), Txn: seen, Status: store.Completed, At: now()},
		{Ref: ref("a", "read from the table"), Status: store.Failed, At: now()},
	}
	want := []store.SettleResult{store.TooEarly, store.TooEarly, store.TooEarly, store.Written, store.WasGone, store.WasGone}
	for i, got := range b.settle(t, append(early, others...)...) {
		if got != want[i] && (s.stateful() || got != store.Written) {
			t.Errorf("before the commit, outcome %d: %d, want %d", i, got, want[i])
		}
	}

	commit()
	for i, got := range b.settle(t, early...) {
		want := store.Written
		if !s.stateful() && early[i].Status == store.Failed {
			want = store.WasSettled // by record
		}
		if got != want {
			t.Errorf("after the commit, outcome %d: got %d, want %d", i, got, want)
		}
	}

	b.wantOutcomes(t)
}

// testSettleOpenTxnSpilled: an outcome that is too early leaves its row spilled and its lane
// unchanged.
func (s *suite) testSettleOpenTxnSpilled(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	txn, commit := b.db.Begin(t, "a", row("done"), row("dead"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before an outcome can see it")
	}

	done, dead := capturedRow(key, "done", 1), capturedRow(key, "dead", 2)
	b.spill(t, done, dead)
	call := outcomesOf(txn, "done", "dead", "")[:2]
	call[0].SpilledSeq, call[1].SpilledSeq = done.Seq, dead.Seq
	held := blockLane(&call[1], key)
	for i, got := range b.settle(t, call...) {
		if got != store.TooEarly {
			t.Errorf("before the commit, outcome %d: got %d, want TooEarly", i, got)
		}
	}

	b.wantLane(t, "before the commit", key, done, dead)
	b.wantHolds(t, "before the commit", b.store)
	commit()
	for i, got := range b.settle(t, call...) {
		if got != store.Written {
			t.Errorf("after the commit, outcome %d: got %d, want Written", i, got)
		}
	}

	b.wantLane(t, "behind the commit", key)
	b.wantHolds(t, "behind the commit", b.store, held)
}

// recording returns a suite whose layout has columns for receipts: a text, integers of 4 and 8
// bytes, and an integer as a text.
func (s *suite) recording() *suite {
	s.hasTables = false // they lack the columns
	r := &suite{harness: s.harness, layout: s.layout}
	r.layout.Record = []store.RecordColumn{
		{Receipt: "topic", Column: "Kafka topic"}, {Receipt: "partition", Column: "kafka_partition", Max: math.MaxInt32},
		{Receipt: "offset", Column: "kafka_offset", Max: math.MaxInt64}, {Receipt: "offset", Column: "offset_text", Max: math.MaxInt64},
	}
	return r
}

// kafkaReceipt returns the receipt of a record.
func kafkaReceipt(topic, partition, offset string) []store.Receipt {
	return []store.Receipt{{Name: "partition", Value: partition}, {Name: "topic", Value: topic}, {Name: "offset", Value: offset}}
}

// testReceipts writes the receipts of 250 rows in one call, which is more than one statement has,
// with a row that has none and one that has a part.
func (s *suite) testReceipts(t *testing.T) {
	b := s.recording().start(t, 0)
	all := append(rows(250), row("none"), row("part"), row("retried"))
	if !lacksFailed(&s.layout) {
		all = append(all, row("dead"))
	}
	b.insert(t, "a", all...)
	b.insert(t, "b", row("00000"))
	want := map[string]string{"none": "~,~,~,~", "part": "~,~,7,7", "retried": "~,~,~,~"}
	call := []store.Outcome{{Ref: ref("b", "00000"), Status: store.Completed, At: now(), Receipt: kafkaReceipt("other", "1", "2")}}
	at := now()
	for i, r := range all {
		o := store.Outcome{Ref: ref("a", r.ID), Status: store.Completed, At: at}
		switch r.ID {
		case "none":
		case "part":
			o.Receipt = []store.Receipt{{Name: "offset", Value: "7"}, {Name: "unknown", Value: "x"}}
		case "dead": // only a delivery has a receipt
			o.Status, o.Receipt = store.Failed, kafkaReceipt("t", "1", "2")
			want[r.ID] = "~,~,~,~"
		case "retried":
			o.Status, o.Receipt = store.Pending, kafkaReceipt("t", "1", "2")
		default:
			partition, offset := strconv.Itoa(i%3), strconv.Itoa(1<<40+i)
			o.Receipt = kafkaReceipt("orders", partition, offset)
			want[r.ID] = "orders," + partition + "," + offset + "," + offset
		}
		call = append(call, o)
	}
	for i, result := range b.settle(t, call...) {
		if result != store.Written {
			t.Errorf("outcome of row %s: got %d, want Written", call[i].ID, result)
		}
	}
	for i, r := range all {
		if i < 250 && i%10 != 0 {
			continue // they are written together
		}
		id, receipt := r.ID, want[r.ID]
		if got := b.read(t, "a", id); got.Receipt != receipt {
			t.Errorf("row %s: got %+v, want receipt %s", id, got, receipt)
		}
	}
	if got := b.read(t, "b", "00000"); got.Status != store.Completed || got.Receipt != "other,1,2,2" {
		t.Errorf("row of the other outbox: got %+v, want receipt other,1,2,2", got)
	}

	b.settleBesideMissing(t)

	// A settled row keeps its receipt: its delivery is the first that was recorded.
	again := store.Outcome{Ref: ref("a", "part"), Status: store.Completed, At: now(), Receipt: kafkaReceipt("late", "1", "9")}
	if got := b.settle(t, again); got[0] != store.WasSettled || b.read(t, "a", "part").Receipt != want["part"] {
		t.Errorf("second outcome: got %d and receipt %s, want WasSettled and %s", got[0], b.read(t, "a", "part").Receipt, want["part"])
	}
}

// settleBesideMissing writes the receipts of rows together with one that is missing, because a store
// may then write the others in another way.
func (b *bench) settleBesideMissing(t *testing.T) {
	t.Helper()
	b.insert(t, "b", rows(70)[1:]...)
	call := []store.Outcome{{Ref: ref("b", "never there"), Status: store.Completed, At: now(), Receipt: kafkaReceipt("t", "0", "0")}}
	for i, r := range rows(70)[1:] {
		call = append(call, store.Outcome{Ref: ref("b", r.ID), Status: store.Completed, At: call[0].At, Receipt: kafkaReceipt("t", "0", strconv.Itoa(i))})
	}
	for i, result := range b.settle(t, call...) {
		if want := fmt.Sprintf("t,0,%d,%d", i-1, i-1); i == 0 && result != store.WasGone || i > 0 && b.read(t, "b", call[i].ID).Receipt != want {
			t.Errorf("outcome %d beside a missing row: got %d and %+v, want receipt %s", i, result, b.read(t, "b", call[i].ID), want)
		}
	}
}

// testHostileReceipts: no value of a receipt keeps a row from becoming COMPLETED, and a delivery
// without receipts clears those of an earlier one.
func (s *suite) testHostileReceipts(t *testing.T) {
	b := s.recording().start(t, 0)
	_, schemaless := b.db.(Schemaless)
	const largest = "9223372036854775807"
	receipts := []struct{ topic, partition, offset, want string }{
		{`quote ' " \ {NULL} $1 ; --`, "0", "0", `quote ' " \ {NULL} $1 ; --,0,0,0`},
		{"NULL", "2147483647", largest, "NULL,2147483647," + largest + "," + largest},
		{"snow ☃ and 𝄞", "no number", "-", "snow ☃ and 𝄞,~,~,-"},
		{"", "3000000000", "1e3", ",~,~,1e3"},
		{"a\x00b", "1", "9223372036854775808", "ab,1,~,9223372036854775808"},
	}
	if schemaless { // a long is never kept as a text
		receipts[2].want, receipts[3].want, receipts[4].want = "snow ☃ and 𝄞,~,~,~", ",~,~,~", "ab,1,~,~"
	}
	var call []store.Outcome
	for i, r := range receipts {
		id := strconv.Itoa(i)
		b.insert(t, "a", row(id))
		call = append(call, store.Outcome{Ref: ref("a", id), Status: store.Completed, At: now(), Receipt: kafkaReceipt(r.topic, r.partition, r.offset)})
	}
	b.settle(t, call...)
	for i, r := range receipts {
		if got := b.read(t, "a", call[i].ID); got.Status != store.Completed || got.Receipt != r.want {
			t.Errorf("receipt %q: got %+v, want %s", r, got, r.want)
		}
	}

	long := store.Outcome{Ref: ref("a", "long"), Status: store.Completed, At: now(), Receipt: kafkaReceipt(strings.Repeat("long ☃", 1<<16), "1", "1")}
	b.insert(t, "a", row("long"))
	b.settle(t, long)
	if got := b.read(t, "a", "long"); got.Status != store.Completed || !strings.HasPrefix(got.Receipt, "long ☃long") {
		t.Errorf("a long topic: got %s and %.50q", got.Status, got.Receipt)
	}

	b.db.Set(t, "a", "0", store.Pending, now())
	b.settle(t, store.Outcome{Ref: ref("a", "0"), Status: store.Completed, At: now()})
	if got := b.read(t, "a", "0"); got.Receipt != "~,~,~,~" {
		t.Errorf("delivered again without receipts: got %s, want none", got.Receipt)
	}
}

// testReceiptColumns: Check names a column that is missing or too small, with its key.
func (s *suite) testReceiptColumns(t *testing.T) {
	r := s.recording()
	box := r.outbox("a")
	db := r.setup(t, box)
	if _, schemaless := db.(Schemaless); schemaless {
		t.Skip("a field takes values of any type")
	}
	for _, tt := range []struct {
		record store.RecordColumn
		want   []string
	}{
		{store.RecordColumn{Receipt: "topic", Column: "no_such_column"}, []string{"no_such_column (record.topic)"}},
		{store.RecordColumn{Receipt: "topic", Column: "kafka_offset"}, []string{"kafka_offset (record.topic)", "text"}},
	} {
		bad := box
		bad.Layout.Record = []store.RecordColumn{tt.record}
		st := db.Store(t, Config{Outboxes: []store.Outbox{bad}})
		t.Cleanup(st.Close)
		if err := st.Install(s.ctx(t)); err != nil {
			t.Fatal(err)
		}
		err := st.Check(s.ctx(t))
		var setup *store.SetupError
		if !errors.As(err, &setup) || setup.Remedy == "" {
			t.Errorf("%s: got %v, want a setup error with a remedy", tt.record.Key(), err)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(setup.Problem, part) {
				t.Errorf("%s: got %q, want %q in it", tt.record.Key(), setup.Problem, part)
			}
		}
	}
}
