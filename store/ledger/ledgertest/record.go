package ledgertest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// testRecords writes, lists and deletes records, some with keys that are patterns in SQL.
func (b *bench) testRecords(t *testing.T) {
	b.wantRecords(t, "at first", "kind", "", 0)
	large := `{"x": "` + strings.Repeat(`ab'\\\" %_`, 30_000) + `"}`
	keys := []string{"%", "A", "_", "a", "a.1", "a/1", "a/2", "aa", strings.Repeat("k", 100), "~0"}
	var all []string
	for _, key := range keys {
		b.put(t, "kind", key, "{}")
		all = append(all, key+" {}")
	}
	b.put(t, "other", "a/3", "{}")
	b.wantRecords(t, "ordered by key", "kind", "", 0, all...)
	b.wantRecords(t, "limited", "kind", "", 3, all[:3]...)
	b.wantRecords(t, "a prefix", "kind", "a/", 0, "a/1 {}", "a/2 {}")
	b.wantRecords(t, "a prefix, limited", "kind", "a", 2, "a {}", "a.1 {}")
	b.wantRecords(t, "no pattern", "kind", "%", 0, "% {}")
	b.wantRecords(t, "no pattern", "kind", "_", 0, "_ {}")
	b.update(t, func(ctx context.Context, tx ledger.Tx) error {
		return errors.Join(tx.Put(ctx, "kind"), tx.Put(ctx, "kind", ledger.Record{Key: "new", Body: []byte("1")}, ledger.Record{Key: "a", Body: []byte(large)}))
	})
	b.wantRecords(t, "written together", "kind", "new", 0, "new 1")
	b.wantRecords(t, "written again", "kind", "a", 1, "a "+large)

	b.update(t, func(ctx context.Context, tx ledger.Tx) error {
		if got := get(t, ctx, tx, "kind", "a"); got != large {
			t.Errorf("got %d bytes, want %d", len(got), len(large))
		}
		for what, read := range map[string]func(context.Context, string, ...string) ([][]byte, error){"get": tx.Get, "lock": tx.Lock} {
			got, err := read(ctx, "kind", "%", "b", "aa", "a", "aa", "a/3")
			var texts []string
			for _, body := range got {
				texts = append(texts, string(body))
			}
			if !slices.Equal(texts, []string{"{}", "", "{}", large, "{}", ""}) || got[1] != nil || err != nil {
				t.Errorf("%s of several records: got %.300q, %v", what, texts, err)
			}
			if got, err := read(ctx, "kind"); len(got) != 0 || err != nil {
				t.Errorf("%s of no record: got %q, %v", what, got, err)
			}
		}
		if err := tx.List(ctx, "kind", "", 0, func(ledger.Record) error { return errNo }); !errors.Is(err, errNo) {
			t.Errorf("list: got %v, want the error of take", err)
		}
		now, err := tx.Now(ctx)
		if age := time.Since(now).Abs(); age > time.Minute || err != nil {
			t.Errorf("the server's clock differs by %s, %v", age, err)
		}
		return errors.Join(tx.Delete(ctx, "kind"), tx.Delete(ctx, "kind", "a", "nobody", "aa", "a/3"))
	})
	b.wantRecords(t, "deleted", "kind", "a", 0, "a.1 {}", "a/1 {}", "a/2 {}")
	b.wantRecords(t, "of another kind", "other", "", 0, "a/3 {}")
	b.put(t, "kind", "a", "{}")
	b.wantRecords(t, "anew", "kind", "a", 1, "a {}")
}

// testRelays: relays on one database have separate records, queues and epochs.
func (b *bench) testRelays(t *testing.T) {
	other := &bench{db: b.db, leader: b.db.Open(t, "second")}
	var err error
	if other.epoch, err = other.leader.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	b.put(t, "kind", "key", "1")
	other.put(t, "kind", "key", "2")
	b.enqueue(t, "q", 1, row(1, "g"))
	other.enqueue(t, "q", 2, row(1, "g"), row(2, "g"))
	other.update(t, func(ctx context.Context, tx ledger.Tx) error {
		n, err := tx.Dequeue(ctx, "q", []ledger.Ref{{Ref: row(1, "g").Ref, N: 1}}, nil)
		if got := get(t, ctx, tx, "kind", "key"); got != "2" || n != 1 {
			t.Errorf("the second relay: %q, %d rows", got, n)
		}
		return errors.Join(err, tx.Delete(ctx, "kind", "key"))
	})
	b.wantRecords(t, "the first relay", "kind", "", 0, "key 1")
	b.wantQueue(t, "the first relay", "q", row(1, "g"))
}

// testSecondTerm: a store that leads again sees what another leader wrote meanwhile, also if
// the record has as many versions as before.
func (b *bench) testSecondTerm(t *testing.T) {
	locked := func(write string) (read string) {
		b.update(t, func(ctx context.Context, tx ledger.Tx) error {
			bodies, err := tx.Lock(ctx, "kind", "key")
			if err != nil {
				return err
			}
			read = string(bodies[0])
			return tx.Put(ctx, "kind", ledger.Record{Key: "key", Body: []byte(write)})
		})
		return read
	}
	b.put(t, "kind", "key", "1")
	locked("2")
	first := b.leader
	b.lead(t)
	b.update(t, func(ctx context.Context, tx ledger.Tx) error { return tx.Delete(ctx, "kind", "key") })
	b.put(t, "kind", "key", "3")
	locked("4")

	var err error
	b.leader = first
	if b.epoch, err = first.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := locked("5"); got != "4" {
		t.Errorf("got %q, want 4", got)
	}
	b.wantRecords(t, "the second term", "kind", "", 0, "key 5")
}

// testFence: an old leader, and a store that never led, update nothing. Requests need no
// leader.
func (b *bench) testFence(t *testing.T) {
	b.put(t, "kind", "key", "1")
	old, before := b.leader, b.epoch
	b.lead(t)
	never := b.db.Open(t, "first")
	for _, w := range []Backend{old, never, b.leader} {
		for _, epoch := range []store.Epoch{0, before, b.epoch, b.epoch + 1} {
			if w == b.leader && epoch == b.epoch {
				continue
			}
			for _, d := range []ledger.Durability{ledger.Normal, ledger.Full, ledger.Barrier} {
				err := w.Update(ctx(t), epoch, d, func(ctx context.Context, tx ledger.Tx) error {
					return tx.Put(ctx, "kind", ledger.Record{Key: "key", Body: []byte("2")})
				})
				if !errors.Is(err, store.ErrNotLeader) && (d != ledger.Barrier || !errors.Is(err, store.ErrInterrupted)) {
					t.Errorf("epoch %d: got %v, want ErrNotLeader", epoch, err)
				}
			}
		}
	}
	b.wantRecords(t, "after the old leader", "kind", "", 0, "key 1")

	err := never.Request(ctx(t), func(ctx context.Context, tx ledger.Tx, _ int64) error {
		return tx.Put(ctx, "kind", ledger.Record{Key: "key", Body: []byte("3")})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []ledger.Durability{ledger.Normal, ledger.Full, ledger.Barrier} {
		err := b.leader.Update(ctx(t), b.epoch, d, func(ctx context.Context, tx ledger.Tx) error {
			return tx.Put(ctx, "kind", ledger.Record{Key: "leader", Body: []byte("1")})
		})
		if err != nil {
			t.Errorf("durability %d: %v", d, err)
		}
	}
	b.wantRecords(t, "after a request", "kind", "", 0, "key 3", "leader 1")
}

// testRollback: an error of do is returned and undoes every kind of write.
func (b *bench) testRollback(t *testing.T) {
	b.put(t, "kind", "kept", "1")
	b.put(t, "kind", "deleted", "1")
	b.enqueue(t, "q", 2, row(1, "g"), row(2, "h"))
	do := func(ctx context.Context, tx ledger.Tx) error {
		_, added := tx.Enqueue(ctx, "q", []store.Item{row(3, "g")})
		n, removed := tx.Dequeue(ctx, "q", []ledger.Ref{{Ref: row(1, "g").Ref, N: 1}}, nil)
		cleared, _, clearErr := tx.Clear(ctx, ledger.Scan{Queue: "q", Limit: 1})
		n += cleared
		err := errors.Join(tx.Put(ctx, "kind", ledger.Record{Key: "kept", Body: []byte("2")}), tx.Put(ctx, "kind", ledger.Record{Key: "new", Body: []byte("2")}), tx.Delete(ctx, "kind", "deleted"), added, removed, clearErr)
		if got := get(t, ctx, tx, "kind", "kept"); got != "2" || n != 2 || err != nil {
			t.Errorf("in the transaction: %q, %d rows, %v", got, n, err)
		}
		return errNo
	}
	if err := b.leader.Update(ctx(t), b.epoch, ledger.Full, do); !errors.Is(err, errNo) {
		t.Errorf("update: got %v, want the error of do", err)
	}
	err := b.leader.Request(ctx(t), func(ctx context.Context, tx ledger.Tx, _ int64) error { return do(ctx, tx) })
	if !errors.Is(err, errNo) {
		t.Errorf("request: got %v, want the error of do", err)
	}
	if err := b.leader.View(ctx(t), func(context.Context, ledger.Reader) error { return errNo }); !errors.Is(err, errNo) {
		t.Errorf("view: got %v, want the error of do", err)
	}
	b.wantRecords(t, "rolled back", "kind", "", 0, "deleted 1", "kept 1")
	b.wantQueue(t, "rolled back", "q", row(1, "g"), row(2, "h"))
}

// testCanceled: a canceled call returns an error, and the backend stays usable.
func (b *bench) testCanceled(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	write := func(ctx context.Context, tx ledger.Tx) error {
		return tx.Put(ctx, "kind", ledger.Record{Key: "key", Body: []byte("1")})
	}
	for what, err := range map[string]error{
		"update":  b.leader.Update(gone, b.epoch, ledger.Full, write),
		"request": b.leader.Request(gone, func(ctx context.Context, tx ledger.Tx, _ int64) error { return write(ctx, tx) }),
		"view":    b.leader.View(gone, func(context.Context, ledger.Reader) error { return nil }),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	b.wantRecords(t, "canceled", "kind", "", 0)
	b.put(t, "kind", "key", "1")
}

// testRequests makes requests from several stores at once. Each has its own number, none is
// lost, and a refused one is not counted.
func (b *bench) testRequests(t *testing.T) {
	const stores, each = 3, 20
	numbers := make(chan int64, stores*each*2)
	failed := make(chan error, stores)
	for range stores {
		w := b.db.Open(t, "first")
		go func() {
			var err error
			for i := 0; i < each && err == nil; i++ {
				var number int64
				err = w.Request(ctx(t), func(ctx context.Context, tx ledger.Tx, nth int64) error {
					number = nth
					return add(ctx, tx, "counted", 1)
				})
				numbers <- number
				if err == nil && !errors.Is(w.Request(ctx(t), func(context.Context, ledger.Tx, int64) error { return errNo }), errNo) {
					err = errors.New("a refused request did not return its error")
				}
			}
			failed <- err
		}()
	}
	for range stores {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}

	seen := map[int64]bool{}
	for range stores * each {
		n := <-numbers
		if n < 1 || n > stores*each || seen[n] {
			t.Errorf("request number %d comes twice or is not between 1 and %d", n, stores*each)
		}
		seen[n] = true
	}
	b.wantRecords(t, "counted", "kind", "", 0, "counted "+strconv.Itoa(stores*each))
}

// add reads a number, adds to it and writes it back.
func add(ctx context.Context, tx ledger.Tx, key string, n int) error {
	bodies, err := tx.Lock(ctx, "kind", key)
	if err != nil {
		return err
	}
	before, _ := strconv.Atoi(string(bodies[0]))
	return tx.Put(ctx, "kind", ledger.Record{Key: key, Body: []byte(strconv.Itoa(before + n))})
}

// testRequestsBesideUpdates: Lock locks a record, so that a request and the leader can change
// the same one.
func (b *bench) testRequestsBesideUpdates(t *testing.T) {
	b.put(t, "kind", "key", "0")
	other := b.db.Open(t, "first")
	const n = 50
	ended := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil; i++ {
			err = other.Request(ctx(t), func(ctx context.Context, tx ledger.Tx, _ int64) error { return add(ctx, tx, "key", 1) })
		}
		ended <- err
	}()
	for range n {
		b.update(t, func(ctx context.Context, tx ledger.Tx) error { return add(ctx, tx, "key", 100) })
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	b.wantRecords(t, "both", "kind", "", 0, "key "+strconv.Itoa(n+100*n))
}

// testSnapshot reads two records and a queue while all are written together.
func (b *bench) testSnapshot(t *testing.T) {
	const n = 50
	ended := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil; i++ {
			err = b.leader.Update(ctx(t), b.epoch, ledger.Normal, func(ctx context.Context, tx ledger.Tx) error {
				_, err := tx.Enqueue(ctx, "q", []store.Item{row(int64(i+1), "g")})
				return errors.Join(add(ctx, tx, "one", 1), err, add(ctx, tx, "two", 1))
			})
		}
		ended <- err
	}()
	for looks := 0; ; looks++ {
		b.view(t, func(ctx context.Context, r ledger.Reader) error {
			one := get(t, ctx, r, "kind", "one")
			rows, err := r.Scan(ctx, ledger.Scan{Queue: "q", Limit: n})
			two := get(t, ctx, r, "kind", "two")
			if count, _ := strconv.Atoi(one); one != two || len(rows) != count {
				t.Errorf("the records are %q and %q, and the queue has %d rows", one, two, len(rows))
			}
			return err
		})
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("read %d times", looks)
			return
		default:
		}
	}
}
