package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// retainAt retains the log under a name, and returns the position of a row that was then
// written, and received by the relay.
func retainAt(t *testing.T, d *database, f *following, name string) capture.StartPoint {
	t.Helper()
	kept, err := f.src.RetainLog(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	servers.Exec(t, d.url, insert("after "+name))
	return capture.StartPoint{Checkpoint: store.Checkpoint{Origin: f.o.Origin, Position: f.next().Position}, Slot: kept}
}

// retainedByName returns the retained slots, by name.
func retainedByName(t *testing.T, src *postgres.Source) map[string]capture.RetainedSlot {
	t.Helper()
	list, err := src.RetainedSlots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]capture.RetainedSlot{}
	for _, one := range list {
		byName[one.Name] = one
	}
	if len(byName) < len(list) {
		t.Errorf("duplicate names: %+v", list)
	}
	return byName
}

// expectRetainedFinding expects a finding of a diagnosis about retained log.
func expectRetainedFinding(t *testing.T, src *postgres.Source, grade store.Grade, text string) {
	t.Helper()
	found, err := src.Diagnose(t.Context())
	if err != nil || !slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.Subject == "named checkpoints" && f.Grade == grade && strings.Contains(f.Text, text)
	}) {
		t.Errorf("no finding with %q: %+v, error %v", text, found, err)
	}
}

// readAgain reads a range again, passes each batch to take, and returns the rows.
func readAgain(t *testing.T, d *database, at capture.StartPoint, until store.Position, take func(capture.Batch)) ([]string, error) {
	t.Helper()
	return capturetest.ReadRange(t, newSource(t, d.config()), at, until, take)
}

// TestRetainLog: retained log stays while the relay's own is discarded, grows with writes,
// and is discarded when it is released.
func TestRetainLog(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		d := privateDatabase(t, servers.Start(t, version, nil)) // without the log of other tests
		f := follow(t, d, d.config(), store.Checkpoint{})
		retainAt(t, d, f, "one")
		retainAt(t, d, f, "cp")
		const much = 3 << 20 // bytes
		servers.Exec(t, d.url, insert("middle"))
		f.src.Acknowledge(f.next().Position)
		servers.Exec(t, d.url, fmt.Sprintf("INSERT INTO unrelated SELECT generate_series(1, %d)", much/60), insert("last"))
		f.src.Acknowledge(f.next().Position)
		await(t, d.url, fmt.Sprintf("SELECT confirmed_flush_lsn > (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '%[1]s_cp_cp') + %[2]d FROM pg_replication_slots WHERE slot_name = '%[1]s'", d.name, much/2))
		if own, err := f.src.Retained(t.Context()); err != nil || own.Bytes > much/4 {
			t.Errorf("the relay's own slot retains %+v, error %v", own, err)
		}
		list := retainedByName(t, f.src)
		for _, name := range []string{"one", "cp"} {
			if one := list[name]; one.Bytes < much/2 || one.Lost != "" || len(list) != 2 {
				t.Errorf("%s: %+v of %d", name, one, len(list))
			}
		}
		if _, err := f.src.RetainLog(t.Context(), "one"); err != nil { // again
			t.Fatal(err)
		}
		if list := retainedByName(t, f.src); list["one"].Bytes > list["cp"].Bytes || len(list) != 2 {
			t.Errorf("retained again: %+v", list)
		}
		// Another relay's slots are not this relay's, whatever the name.
		cfg := d.config()
		for _, name := range []string{d.name + "_cp", d.name[:len(d.name)-1]} {
			cfg.Name = name
			other := newSource(t, cfg)
			if list := retainedByName(t, other); len(list) > 0 {
				t.Errorf("relay %s: %+v", cfg.Name, list)
			}
			other.Close()
		}
		for range 2 {
			for name := range list {
				if err := f.src.ReleaseLog(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		}
		if n := d.count(t, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != 1 || len(retainedByName(t, f.src)) > 0 {
			t.Errorf("%d slots are left", n)
		}
	})
}

// TestSlotNames: a plain name keeps its slot name, any other gets a hash that fits the
// server's 63 bytes, and two names never share a slot.
func TestSlotNames(t *testing.T) {
	sources := map[string]*postgres.Source{}
	for _, relay := range []string{"shop", "shop_cp", "s", strings.Repeat("x", 40)} {
		src, err := postgres.New(postgres.Config{URL: "postgres://h/d", Name: relay, Outboxes: outboxes("shop")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(src.Close)
		sources[relay] = src
	}
	for name, want := range map[string]string{"before_v2": "shop_cp_before_v2", "_": "shop_cp__", strings.Repeat("z", 18): "shop_cp_" + strings.Repeat("z", 18)} {
		if got := sources["shop"].SlotFor(name); got != want {
			t.Errorf("%q: got slot %s, want %s", name, got, want)
		}
	}
	form := regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	by := map[string]string{}
	for relay, src := range sources {
		for _, name := range []string{
			"before", "before-two", "before_two", "before--two", "cp_x", "x", "cp_cp_x", "a_cp_b", "_cp_", "-", "_",
			strings.Repeat("z", 18), strings.Repeat("z", 19), strings.Repeat("z", 62) + "a", strings.Repeat("z", 63),
		} {
			slot := src.SlotFor(name)
			if !form.MatchString(slot) || by[slot] != "" {
				t.Errorf("%s of relay %s got slot %s, which is also that of %s", name, relay, slot, by[slot])
			}
			by[slot] = name + " of relay " + relay
		}
	}
}

// TestRetainedNames: two relays never share a slot, and no name is cut at the server's 63
// bytes.
func TestRetainedNames(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.Database(t, servers.Versions()[0]))
	cfg := d.config()
	cfg.Name += "_cp_one" // the slot that would retain log for one
	if _, err := postgres.New(cfg); err == nil || !strings.Contains(err.Error(), "use another name") {
		t.Errorf("relay %s: %v", cfg.Name, err)
	}
	d.name = (d.name + strings.Repeat("x", 40))[:40]
	f := follow(t, d, d.config(), store.Checkpoint{})
	for _, name := range []string{"", "A", "-a", "ä", "a b", strings.Repeat("a", 64), "=a", "x'y"} {
		var setup *store.SetupError
		if _, err := f.src.RetainLog(t.Context(), name); !errors.As(err, &setup) {
			t.Errorf("%q: %v", name, err)
		}
		if err := f.src.ReleaseLog(t.Context(), name); err != nil { // no such slot exists
			t.Errorf("%q: %v", name, err)
		}
	}
	hashed := []string{"a-b", "a_b-", strings.Repeat("a", 19), strings.Repeat("a", 63), "cp_x", "_cp_"}
	for _, name := range hashed {
		if _, err := f.src.RetainLog(t.Context(), name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	list := retainedByName(t, f.src)
	for _, name := range hashed {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(list)), func(listed string) bool { return f.src.SlotFor(listed) == f.src.SlotFor(name) }) {
			t.Errorf("%q is not listed: %+v", name, list)
		}
	}
	for i, listed := range slices.Sorted(maps.Keys(list)) { // by the name that is listed, or by its own
		if i%2 == 0 {
			listed = hashed[slices.IndexFunc(hashed, func(name string) bool { return f.src.SlotFor(listed) == f.src.SlotFor(name) })]
		}
		if err := f.src.ReleaseLog(t.Context(), listed); err != nil {
			t.Errorf("%q: %v", listed, err)
		}
	}
	long := strings.Repeat("a", 18)
	at := retainAt(t, d, f, long)
	defer func() { _ = f.src.ReleaseLog(context.Background(), long) }()
	if list := retainedByName(t, f.src); list[long].Name != long || len(list) != 1 {
		t.Errorf("%+v", list)
	}
	if err := f.src.CheckReachable(t.Context(), at); err != nil {
		t.Error(err)
	}
	at.Slot = d.name // the relay's own slot is not a retained one
	var lost *capture.LostError
	if err := f.src.CheckReachable(t.Context(), at); !errors.As(err, &lost) {
		t.Errorf("got %v, want a *capture.LostError", err)
	}
}

// TestReleaseLogWhileRead: a reader that does not acknowledge leaves the positions of
// the retained slot and its copy unchanged. A reader that has started continues after the
// retained slot is dropped.
func TestReleaseLogWhileRead(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		f := follow(t, d, d.config(), store.Checkpoint{})
		at := retainAt(t, d, f, "one")
		const stand = "SELECT coalesce(string_agg(DISTINCT confirmed_flush_lsn::text, ', '), '') FROM pg_replication_slots WHERE slot_name LIKE $1 AND slot_name <> $2"
		where := func() (text string) {
			if err := servers.Connect(t, d.url).QueryRow(t.Context(), stand, d.name+"%", d.name).Scan(&text); err != nil {
				t.Fatal(err)
			}
			return text
		}
		was := where()
		var until store.Position
		for i := range 5 {
			servers.Exec(t, d.url, insert(fmt.Sprintf("row %d", i)))
			until = f.next().Position
		}
		read := 0
		ids, err := readAgain(t, d, at, until, func(b capture.Batch) {
			read += len(b.Items)
			if now := where(); now != was && now != "" { // it may just have ended
				t.Errorf("with %d rows read the slots are at %s, before at %s", read, now, was)
			}
			if read == 1 {
				if err := f.src.ReleaseLog(t.Context(), "one"); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil || strings.Join(ids, ", ") != "row 0, row 1, row 2, row 3, row 4" {
			t.Errorf("got rows %q, error %v", ids, err)
		}
		var lost *capture.LostError
		if _, err := readAgain(t, d, at, until, nil); !errors.As(err, &lost) {
			t.Errorf("got %v, want a *capture.LostError", err)
		}
	})
}

// TestRetainedLogInvalidated: if the server invalidates the slot because of a limit, the
// error names the lost log.
func TestRetainedLogInvalidated(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		limit := map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
		if version >= 18 {
			limit = map[string]string{"idle_replication_slot_timeout": "1s"}
		}
		srv := servers.Start(t, version, limit)
		d := privateDatabase(t, srv)
		f := follow(t, d, d.config(), store.Checkpoint{})
		at := retainAt(t, d, f, "one")
		f.stop() // its own slot is invalidated too
		const intact = "SELECT count(*) FROM pg_replication_slots WHERE to_jsonb(pg_replication_slots) ->> 'invalidation_reason' IS NULL AND wal_status <> 'lost'"
		for end := time.Now().Add(testTimeout); d.count(t, intact) > 0 && time.Now().Before(end); <-time.After(100 * time.Millisecond) {
			servers.Exec(t, d.url, "INSERT INTO unrelated VALUES (1)", "SELECT pg_switch_wal()", "CHECKPOINT")
		}
		src := newSource(t, d.config())
		defer src.Close()
		if one := retainedByName(t, src)["one"]; one.Lost == "" {
			t.Errorf("%+v", one)
		}
		expectRetainedFinding(t, src, store.GradeAdvice, at.Slot+", for checkpoint one, has lost its WAL")
		var lost *capture.LostError
		if err := src.CheckReachable(t.Context(), at); !errors.As(err, &lost) {
			t.Errorf("got %v, want a *capture.LostError", err)
		}
		if _, err := src.RetainLog(t.Context(), "two"); !errors.As(err, &lost) {
			t.Errorf("the relay's own log is lost: %v", err)
		}
		if err := src.ReleaseLog(t.Context(), "one"); err != nil || len(retainedByName(t, src)) > 0 {
			t.Error(err)
		}
	})
}

// TestRetainLogRefused: the error names the reason why log cannot be retained.
func TestRetainLogRefused(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, map[string]string{"max_replication_slots": "2"})
		d := privateDatabase(t, srv)
		src := newSource(t, d.config())
		defer src.Close()
		var lost *capture.LostError
		if _, err := src.RetainLog(t.Context(), "one"); !errors.As(err, &lost) {
			t.Errorf("no such slot: got %v, want a *capture.LostError", err)
		}
		f := follow(t, d, d.config(), store.Checkpoint{})
		servers.Exec(t, d.url, fmt.Sprintf("SELECT pg_create_physical_replication_slot('%s_cp_one')", d.name))
		var setup *store.SetupError
		_, err := src.RetainLog(t.Context(), "one")
		for _, err := range []error{err, src.ReleaseLog(t.Context(), "one")} {
			if !errors.As(err, &setup) || !strings.Contains(err.Error(), "another program") {
				t.Errorf("slot of another program: got error %v", err)
			}
		}
		servers.Exec(t, d.url, fmt.Sprintf("SELECT pg_drop_replication_slot('%s_cp_one')", d.name))
		at := retainAt(t, d, f, "one")
		expectRetainedFinding(t, src, store.GradeOK, "for checkpoint one")
		expectRetainedFinding(t, src, store.GradeAdvice, "all 2 replication slots are taken")
		_, err = src.RetainLog(t.Context(), "two")
		servers.Exec(t, d.url, insert("end"))
		_, againErr := readAgain(t, d, at, f.next().Position, nil)
		for _, err := range []error{err, againErr} {
			if !errors.As(err, &setup) || !strings.Contains(err.Error(), "slots are taken") {
				t.Errorf("no free slot: got error %v", err)
			}
		}
		lowly := d.config()
		lowly.StreamURL = d.urlOf(d.newRole(t, "app", ""))
		poor := newSource(t, lowly)
		defer poor.Close()
		_, err = poor.RetainLog(t.Context(), "two")
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), "REPLICATION;`") {
			t.Errorf("role without REPLICATION: got error %v", err)
		}
	})
}

// TestRetainLogWithTwoRoles: the role of the control session does not need the right to
// stream.
func TestRetainLogWithTwoRoles(t *testing.T) {
	t.Parallel()
	oneVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		script(publish)(t, d)
		cfg := d.config()
		app, stream := d.newRole(t, "app", ""), d.newRole(t, "stream", "REPLICATION")
		servers.Exec(t, d.url, "GRANT SELECT ON outbox_events TO "+app+", "+stream)
		cfg.URL, cfg.StreamURL, cfg.MayCreate = d.urlOf(app), d.urlOf(stream), false
		f := follow(t, d, cfg, store.Checkpoint{})
		at := retainAt(t, d, f, "one")
		if err := f.src.CheckReachable(t.Context(), at); err != nil {
			t.Error(err)
		}
		if list := retainedByName(t, f.src); len(list) != 1 {
			t.Errorf("%+v", list)
		}
		if err := f.src.ReleaseLog(t.Context(), "one"); err != nil {
			t.Error(err)
		}
	})
}
