package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testCopyRows copies rows of all odd lanes, twice, and reads them back in pages.
func (s *suite) testCopyRows(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	b.job(t, "job")
	b.job(t, "another")
	keys := append(oddLanes("a"), oddLanes("b")...)
	lanes := make([][]store.ReplayRow, len(keys))
	var all []store.ReplayRow
	for turn, payload := range [][]byte{nil, {}, []byte("\x00\xff{}\xc3("), []byte("{}")} {
		for i, key := range keys {
			// Both outboxes have the same ids.
			row := replayRow(key, fmt.Sprintf(`%d,"{}\' ☃ %d`, i%(len(keys)/2), turn), int64(1+turn*len(keys)+i))
			row.Payload, row.PayloadSize = payload, len(payload)+turn
			if turn == 1 {
				row.Committed = now().AddDate(-20, 0, 0)
			}
			lanes[i], all = append(lanes[i], row), append(all, row)
		}
	}

	at := store.ReplayCursor{Position: "uuid:1-77 '\"\\", Skip: 1 << 30}
	b.copyRows(t, "job", at, all...)
	if j := b.jobOf(t, r, "job"); j.Cursor != at || j.Total != int64(len(all)) {
		t.Errorf("the cursor is %+v, and %d rows are counted", j.Cursor, j.Total)
	}

	more := replayRow(keys[0], "more", int64(len(all)+1))
	changed := slices.Clone(all)
	for i := range changed {
		changed[i].Payload, changed[i].Committed = []byte("another"), now()
	}

	at = store.ReplayCursor{Position: "further"}
	b.copyRows(t, "job", at, append(changed, more)...)
	lanes[0] = append(lanes[0], more)
	if j := b.jobOf(t, r, "job"); j.Cursor != at || j.Total != int64(len(all)+1) {
		t.Errorf("with rows that are there the cursor is %+v, and %d rows are counted", j.Cursor, j.Total)
	}

	b.copyRows(t, "job", store.ReplayCursor{})
	if j := b.jobOf(t, r, "job"); j.Cursor != (store.ReplayCursor{}) || j.Total != int64(len(all)+1) {
		t.Errorf("without rows the cursor is %+v, and %d rows are counted", j.Cursor, j.Total)
	}

	for i, key := range keys {
		b.wantReplayRows(t, "copied", "job", key, lanes[i]...)
		b.wantReplayRows(t, "another replay", "another", key)
	}

	b.pageReplay(t, keys, lanes)
	large := replayRow(keys[1], "large", int64(len(all)+2))
	large.Payload = bytes.Repeat([]byte("\x00'\\\"\xff{}☃x"), 5<<20/11)
	large.PayloadSize = len(large.Payload)
	b.copyRows(t, "job", at, large)
	b.wantReplayRows(t, "of 5 MiB", "job", keys[1], append(lanes[1], large)...)
}

// pageReplay reads all lanes together, two rows of each per page.
func (b *bench) pageReplay(t *testing.T, keys []store.LaneKey, lanes [][]store.ReplayRow) {
	t.Helper()
	ask := []store.ReplayRange{replayAfter(lane("a", "of no", store.GroupOf("row")), 0)}
	for _, key := range keys {
		ask = append(ask, replayAfter(key, 0))
	}

	for page := range 3 {
		lists := b.replayRows(t, b.store, "job", 2, ask...)
		if len(lists[0]) != 0 {
			t.Errorf("a lane without rows has %d", len(lists[0]))
		}
		for i, list := range lists[1:] {
			want := lanes[i][min(2*page, len(lanes[i])):min(2*page+2, len(lanes[i]))]
			if len(list) != len(want) {
				t.Errorf("page %d of lane %.60s has %d rows, want %d", page, keys[i], len(list), len(want))
				continue
			}
			for k := range list {
				if list[k].N != want[k].N || list[k].Ref != want[k].Ref {
					t.Errorf("page %d of lane %.60s: row %d %q, want %d %q", page, keys[i], list[k].N, list[k].ID, want[k].N, want[k].ID)
				}
				ask[i+1].After = list[k].N
			}
		}
	}
}

// testCopyRefused: an invalid call writes nothing.
func (s *suite) testCopyRefused(t *testing.T) {
	b := s.start(t, 0)
	r, key := b.store, lane("a", "EVENT", store.GroupOf("g"))
	b.job(t, "job")
	before := b.jobOf(t, r, "job")
	good := replayRow(key, "1", 1)
	for what, bad := range map[string]store.ReplayRow{
		"no number": replayRow(key, "2", 0), "a negative number": replayRow(key, "2", -1),
		"no outbox": replayRow(lane("c", "EVENT", store.Group{}), "2", 2),
	} {
		if err := r.CopyRows(b.ctx(t), b.epoch, "job", []store.ReplayRow{good, bad}, store.ReplayCursor{Position: "p"}); err == nil {
			t.Errorf("row with %s copied, want an error", what)
		}
	}

	for what, err := range map[string]error{
		"copy":         r.CopyRows(b.ctx(t), b.epoch, "none", []store.ReplayRow{good}, store.ReplayCursor{}),
		"copy nothing": r.CopyRows(b.ctx(t), b.epoch, "none", nil, store.ReplayCursor{}),
		"done":         r.FinishRows(b.ctx(t), b.epoch, "none", []store.FinishedRow{{N: 1, Lane: key}}),
	} {
		if !errors.Is(err, store.ErrNoJob) {
			t.Errorf("%s of an unknown replay: got %v, want ErrNoJob", what, err)
		}
	}

	for what, err := range map[string]error{
		"no rows of a lane": second(r.ReplayRows(b.ctx(t), "job", []store.ReplayRange{replayAfter(key, 0)}, 0)),
		"no lanes":          second(r.ReplayLanes(b.ctx(t), "job", 0, 0)),
		"to clear nothing":  second(r.ClearRows(b.ctx(t), b.epoch, "job", 0)),
		"no result":         r.FinishRows(b.ctx(t), b.epoch, "job", []store.FinishedRow{{N: 1, Lane: key, Result: store.ReplayRefused + 1}}),
	} {
		if err == nil || errors.Is(err, store.ErrNoJob) {
			t.Errorf("%s: got %v, want another error", what, err)
		}
	}

	b.wantReplayRows(t, "after what was refused", "job", key)
	if after := b.jobOf(t, r, "job"); !reflect.DeepEqual(after, before) {
		t.Errorf("the replay was %+v and is %+v", before, after)
	}

	b.job(t, "none")
	b.wantReplayRows(t, "a replay that was asked for later", "none", key)
	b.copyRows(t, "job", store.ReplayCursor{}, good)
	b.wantReplayRows(t, "after all", "job", key, good)
}

// testCopyAtOnce reads the cursor and the rows while they are written: each call is visible
// as a whole or not at all.
func (s *suite) testCopyAtOnce(t *testing.T) {
	b := s.start(t, 0)
	b.job(t, "job")
	key := lane("a", "EVENT", store.GroupOf("g"))
	const pages, each = 20, 50
	ctx, other := b.ctx(t), b.open(t, 0)
	done := make(chan error, 1)
	go func() {
		for page := range pages {
			rows := make([]store.ReplayRow, each)
			for i := range rows {
				rows[i] = replayRow(key, fmt.Sprint(i), int64(page*each+i+1))
			}
			err := b.store.CopyRows(ctx, b.epoch, "job", rows, store.ReplayCursor{Position: store.Position(fmt.Sprint(page + 1)), Skip: page + 1})
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()

	for looks := 0; ; looks++ {
		j := b.jobOf(t, other, "job")
		rows := b.replayRows(t, other, "job", pages*each, replayAfter(key, 0))[0]
		if j.Total != int64(j.Cursor.Skip*each) || len(rows) < int(j.Total) || len(rows)%each != 0 {
			t.Fatalf("there are %d rows, %d are counted, and the cursor is %+v", len(rows), j.Total, j.Cursor)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("read %d times", looks)
			return
		default:
		}
	}
}

// testCopyOpenTxn copies a row before its transaction commits: the row keeps its Txn until
// the transaction is visible.
func (s *suite) testCopyOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	b.job(t, "job")
	seen := b.insert(t, "a", row("2"))
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before a claim can see it")
	}

	early, visible := replayRow(key, "1", 1), replayRow(key, "2", 2)
	early.Txn, visible.Txn = txn, seen
	b.copyRows(t, "job", store.ReplayCursor{}, early, visible)
	visible.Txn = 0
	b.wantReplayRows(t, "before the commit", "job", key, early, visible)
	commit()
	early.Txn = 0
	b.wantReplayRows(t, "behind the commit", "job", key, early, visible)
}

// wantLanes compares the lanes of a replay after an N with the expected ones.
func (b *bench) wantLanes(t *testing.T, what, id string, after int64, limit int, want ...store.ReplayLane) {
	t.Helper()
	got, err := b.store.ReplayLanes(b.ctx(t), id, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %.900s, want %.900s", what, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	}
}

// testReplayLanes: lanes are ordered by their first rows, which change as rows are
// finished.
func (s *suite) testReplayLanes(t *testing.T) {
	b := s.start(t, 0)
	b.job(t, "job")
	keys := append(oddLanes("a"), oddLanes("b")...)
	slices.Reverse(keys)
	var rows []store.ReplayRow
	n := int64(0)
	add := func(key store.LaneKey, times int) {
		for range times {
			n += 2
			rows = append(rows, replayRow(key, fmt.Sprint(n), n))
		}
	}

	add(keys[0], 300) // the read must not end inside a long lane
	for _, key := range keys {
		add(key, 2)
	}

	add(keys[3], 1)
	b.copyRows(t, "job", store.ReplayCursor{}, rows...)
	first := func(i int) int64 { // N of lane i's first row
		if i == 0 {
			return 2
		}
		return int64(2 * (301 + 2*i))
	}

	all := make([]store.ReplayLane, len(keys))
	for i, key := range keys {
		all[i] = store.ReplayLane{LaneKey: key, Hash: key.Hash(), First: first(i)}
	}

	b.wantLanes(t, "all", "job", 0, 100, all...)
	b.wantLanes(t, "some", "job", 0, 3, all[:3]...)
	b.wantLanes(t, "behind the first", "job", 2, 2, all[1:3]...)
	b.wantLanes(t, "behind some", "job", first(4), 100, all[5:]...)
	b.wantLanes(t, "behind all", "job", n, 100)
	b.done(t, "job", store.FinishedRow{N: first(1), Lane: keys[1]}, store.FinishedRow{N: first(2), Lane: keys[2]}, store.FinishedRow{N: first(2) + 2, Lane: keys[2]})
	all[1].First += 2
	all = slices.Delete(all, 2, 3)
	b.wantLanes(t, "with rows done", "job", 0, 100, all...)
	for i := range 3 { // the long lane, except its last two rows
		var done []store.FinishedRow
		for k := range int64(100) {
			done = append(done, store.FinishedRow{N: int64(i)*200 + 2*k + 2, Lane: keys[0]})
		}
		b.done(t, "job", done...)
	}

	all[0].First = 602
	b.wantLanes(t, "with a long lane done", "job", 0, 100, all...)
	b.wantLanes(t, "another replay", "another", 0, 5)
}

// testReplayAndSpill: replay rows and spilled rows are separate, and a replay changes no
// outbox row.
func (s *suite) testReplayAndSpill(t *testing.T) {
	b := s.start(t, 0)
	r, key := b.store, lane("a", "EVENT", store.GroupOf("g"))
	b.insert(t, "a", row("1"), row("2"), row("3"))
	b.take(t, "a", "2")
	spilled := capturedRow(key, "1", 1)
	b.spill(t, spilled)
	paused := store.Hold{Lane: key, Kind: store.Paused, Since: now()}
	b.hold(t, paused)
	before := [3]RowContent{b.read(t, "a", "1"), b.read(t, "a", "2"), b.read(t, "a", "3")}
	b.job(t, "job")
	rows := []store.ReplayRow{replayRow(key, "1", 1), replayRow(key, "2", 2), replayRow(key, "3", 3)}
	b.copyRows(t, "job", store.ReplayCursor{Position: "p"}, rows...)
	check := func(what string) {
		t.Helper()
		b.wantLane(t, what, key, spilled)
		b.wantHolds(t, what, b.store, paused)
		if lanes := b.spilledLanes(t, b.store); len(lanes) != 1 || lanes[0].Rows != 1 {
			t.Errorf("%s: the spilled lanes are %+v", what, lanes)
		}
		if s.stateful() {
			got := ids(b.unsettled(t, b.view(t), store.UnsettledQuery{Outbox: "a", Limit: 9}))
			if slices.Sort(got); strings.Join(got, " ") != "2 3" {
				t.Errorf("%s: %q are unsettled and not spilled", what, got)
			}
		}
		if after := [3]RowContent{b.read(t, "a", "1"), b.read(t, "a", "2"), b.read(t, "a", "3")}; !reflect.DeepEqual(after, before) {
			t.Errorf("%s: the rows were %+v and are %+v", what, before, after)
		}
	}

	check("with rows copied")
	done := []store.FinishedRow{{N: 1, Lane: key, ID: "1"}, {N: 2, Lane: key, ID: "2", Result: store.ReplayRefused, Error: "no"}}
	if err := r.FinishRows(b.ctx(t), b.epoch, "job", done); err != nil {
		t.Fatal(err)
	}

	check("with rows done")
	b.deleteSpilledAfter(t, 0, 1)
	b.deleteSpilled(t, store.SpilledRef{Ref: ref("a", "3"), Seq: 3})
	b.settle(t, store.Outcome{Ref: ref("a", "3"), Status: store.Completed, At: now(), SpilledSeq: 3})
	b.wantReplayRows(t, "with no row spilled", "job", key, rows[2])
}

// testStates reads the states of rows of both outboxes in one call, and checks that it
// changes no row.
func (s *suite) testStates(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	names := []string{"free", "claimed", "completed", "failed", "requeued", "deleted", "last"}
	txns := map[string]store.Txn{}
	for _, outbox := range []string{"a", "b"} {
		var list []Row
		for _, id := range names {
			list = append(list, row(id))
		}
		txns[outbox] = b.insert(t, outbox, list...)
		b.db.Delete(t, outbox, "deleted")
		if s.stateful() {
			b.db.Set(t, outbox, "completed", store.Completed, now())
			b.db.Set(t, outbox, "failed", store.Failed, now())
			b.db.Set(t, outbox, "requeued", store.Failed, now())
			b.db.Set(t, outbox, "requeued", store.Pending, now())
		}
	}

	b.claim(t, store.ClaimRow{Ref: ref("a", "claimed"), Txn: txns["a"]})
	b.settle(t, store.Outcome{Ref: ref("b", "last"), Status: store.Completed, At: now()})
	want := map[string]store.RowState{
		"free": store.RowUnsettled, "claimed": store.RowUnsettled, "completed": store.RowCompleted, "failed": store.RowFailed,
		"requeued": store.RowUnsettled, "deleted": store.RowAbsent, "last": store.RowUnsettled, "never there": store.RowAbsent,
	}
	var rows []store.ClaimRow
	for i, id := range append(names, "never there", "completed", "deleted", "free") { // some ids twice
		for k, outbox := range []string{"b", "a"} {
			rows = append(rows, store.ClaimRow{Ref: ref(outbox, id), WantPayload: (i+k)%2 == 0, Txn: txns[outbox] * store.Txn((i+k)%3&1)})
		}
	}

	before := map[store.Ref]RowContent{}
	for _, row := range rows {
		before[row.Ref] = b.read(t, row.Outbox, row.ID)
	}

	states, err := r.ReadStatuses(b.ctx(t), rows)
	if err != nil || len(states) != len(rows) {
		t.Fatalf("%d states of %d rows, %v", len(states), len(rows), err)
	}

	b.wantStates(t, rows, states, want)
	for ref, found := range before {
		if after := b.read(t, ref.Outbox, ref.ID); after != found {
			t.Errorf("row %+v was %+v and is %+v", ref, found, after)
		}
	}

	if _, err := r.ReadStatuses(b.ctx(t), []store.ClaimRow{{Ref: ref("c", "1")}}); err == nil {
		t.Error("read of an unknown outbox succeeded")
	}
}

func (b *bench) wantStates(t *testing.T, rows []store.ClaimRow, states []store.RowStatus, want map[string]store.RowState) {
	t.Helper()
	twice := map[store.Ref]int{}
	for i := range rows {
		state, got := want[rows[i].ID], states[i]
		switch {
		case !b.stateful():
			state = store.RowAbsent
		case rows[i].ID == "last" && rows[i].Outbox == "b":
			state = store.RowCompleted
			if b.layout.DeleteDelivered {
				state = store.RowAbsent
			}
		}

		if j, again := twice[rows[i].Ref]; again && state == store.RowAbsent && b.stateful() && rows[i].Txn != rows[j].Txn {
			state = store.RowUnsettled // the other transaction may still insert it
		}

		twice[rows[i].Ref] = i
		if got.State != state {
			t.Errorf("row %d, %q of outbox %s, has the state %d, want %d", i, rows[i].ID, rows[i].Outbox, got.State, state)
		}

		payload := ""
		if state == store.RowCompleted && b.stateful() && (rows[i].WantPayload || b.wantedElsewhere(rows, i)) {
			payload = row(rows[i].ID).Payload
		}
		if string(got.Payload) != payload {
			t.Errorf("row %d, %q of outbox %s, has the payload %q, want %q", i, rows[i].ID, rows[i].Outbox, got.Payload, payload)
		}
	}
}

// wantedElsewhere reports whether another occurrence of the row requests its payload,
// because all occurrences get the same answer.
func (b *bench) wantedElsewhere(rows []store.ClaimRow, i int) bool {
	for j := range rows {
		if rows[j].Ref == rows[i].Ref && rows[j].WantPayload {
			return true
		}
	}
	return false
}

// testStatesOpenTxn reads the state of a row before its transaction commits: it must not be
// RowAbsent.
func (s *suite) testStatesOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before a claim can see it")
	}

	ask := []store.ClaimRow{{Ref: ref("a", "1"), Txn: txn, WantPayload: true}, {Ref: ref("a", "1")}, {Ref: ref("b", "1")}}
	check := func(what string, want ...store.RowState) {
		t.Helper()
		states, err := b.store.ReadStatuses(b.ctx(t), ask)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !s.stateful() {
				want[i] = store.RowAbsent
			}
			if states[i].State != want[i] || states[i].Payload != nil {
				t.Errorf("%s: row %d is %s, want state %d", what, i, fmt.Sprintf("%+v", states[i]), want[i])
			}
		}
	}

	check("before the commit", store.RowUnsettled, store.RowUnsettled, store.RowAbsent)
	commit()
	check("behind the commit", store.RowUnsettled, store.RowUnsettled, store.RowAbsent)
}
