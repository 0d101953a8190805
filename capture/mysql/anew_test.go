package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// nextSecond waits for the next second, because MySQL identifies its files by the second
// of their creation.
func nextSecond() {
	for now := time.Now().Unix(); time.Now().Unix() == now; {
		<-time.After(10 * time.Millisecond)
	}
}

// TestLogReset checks that a binlog that was reset is not taken for the old one, even
// if it reaches the same numbers again.
func TestLogReset(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, nil)
		for _, named := range []string{"between", "o"} { // longer, and of equal length
			t.Run(named, func(t *testing.T) {
				d := newDatabase(t, f, srv.Database())
				at := d.readOn(t, 20, "x")
				nextSecond()
				d.exec(t, d.reset())
				for i := range 60 {
					d.exec(t, insert(fmt.Sprintf("%s%d", named, i)))
				}

				o, err := d.opening(t, at)
				if err != nil {
					t.Fatal(err)
				}

				t.Logf("at %s: %s", at.Position, o.SnapshotReason)
				if o.SnapshotReason == "" {
					t.Errorf("checkpoint %s was accepted as one of the new log", at.Position)
				}

				if f == servers.MariaDB { // an event ends there too, but another one
					now := d.readOn(t, 3, "z")
					_, coords, _ := strings.Cut(string(now.Position), "@")
					now.Position = store.Position("0-1-40@" + coords)
					if o, err = d.opening(t, now); err != nil || !strings.Contains(o.SnapshotReason, "but was") {
						t.Errorf("at %s: %v, %s", now.Position, err, o.SnapshotReason)
					}
				}
			})
		}
	})
}

// TestLogResetWithFewerFiles checks a reset binlog that has not reached the number of
// the old one's file.
func TestLogResetWithFewerFiles(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Start(t, nil).Database())
		for range 4 {
			d.exec(t, "FLUSH BINARY LOGS")
		}
		at := d.readOn(t, 20, "x")
		d.exec(t, d.reset())
		for i := range 60 {
			d.exec(t, insert(fmt.Sprintf("y%d", i)))
		}
		o, err := d.opening(t, at)
		if err != nil || !strings.Contains(o.SnapshotReason, "binlog was reset") {
			t.Errorf("at %s: %v, %q", at.Position, err, o.SnapshotReason)
		}
	})
}

// readOn inserts rows, reads them, and returns the checkpoint behind them.
func (d *database) readOn(t *testing.T, n int, prefix string) store.Checkpoint {
	t.Helper()
	fo, _, o := follow(t, d, d.config(), store.Checkpoint{})
	for i := range n {
		d.exec(t, insert(fmt.Sprintf("%s%d", prefix, i)))
	}
	fo.Rows(n)
	fo.End()
	same, err := d.opening(t, store.Checkpoint{Origin: o.Origin, Position: fo.Position})
	if err != nil || same.SnapshotReason != "" {
		t.Fatalf("at its own position %s: %v, %s", fo.Position, err, same.SnapshotReason)
	}
	return store.Checkpoint{Origin: o.Origin, Position: fo.Position}
}

// TestLogTruncated checks a crash of the machine with sync_binlog other than 1, which
// truncates the binlog. A relay that was connected notices it too, after it has
// reconnected.
func TestLogTruncated(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, map[string]string{"sync-binlog": "0"})
		d := newDatabase(t, f, srv.Database())
		at := d.readOn(t, 20, "x")
		src := newSource(t, d.config())
		defer src.Close()
		if _, err := src.Open(t.Context(), at, d.tables()); err != nil {
			t.Fatal(err)
		}

		found, err := src.Diagnose(t.Context())
		if err != nil || !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Subject == "sync_binlog" && f.Grade == store.GradeAdvice }) {
			t.Errorf("%v, %+v", err, found)
		}

		// The same on the server's side: its binlog is as long again, but not in that
		// file.
		d.exec(t, d.reset())
		for i := range 60 {
			if d.exec(t, insert(fmt.Sprintf("y%d", i))); i%10 == 0 {
				d.exec(t, "FLUSH BINARY LOGS")
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		err = src.Run(ctx, capture.Span{From: at.Position}, nil)
		var lost *capture.LostError
		if !errors.As(err, &lost) || !strings.Contains(lost.Reason, "ends at") {
			t.Errorf("the run ended with %v, want a lost log", err)
		}

		t.Log(err)
		o, err := d.opening(t, at)
		if err != nil || !strings.Contains(o.SnapshotReason, "ends at") {
			t.Errorf("at %s: %v, %s", at.Position, err, o.SnapshotReason)
		}
	})
}
