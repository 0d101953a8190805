package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// known is a store that knows rows whose id begins with s as settled.
type known struct {
	asked []int         // rows of each call
	takes time.Duration // a call
	tell  bool          // claims find out, too
	err   error
}

func (k *known) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	k.asked = append(k.asked, len(rows))
	<-time.After(k.takes)
	settled := make([]bool, len(rows))
	for i := range rows {
		settled[i] = strings.HasPrefix(rows[i].ID, "s")
	}
	return settled, k.err
}

// catchingUp runs a feed that catches up until the marker "here".
func catchingUp(t *testing.T, k *known, test func(f *feeding, in chan<- capture.Batch)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeeding(DefaultConfig())
		f.BeginCatchUp(k)
		f.ClaimsDetectSettled = k.tell
		f.OnMarker = func(token string, _ store.Position, _ store.Seq) {
			if token == "here" {
				f.EndCatchUp()
			}
		}
		in, done := make(chan capture.Batch), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { done <- f.Run(ctx, in) }()
		test(f, in)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestWhatIsSettledIsLeftOutUntilTheRelayHasCaughtUp(t *testing.T) {
	k := &known{}
	catchingUp(t, k, func(f *feeding, in chan<- capture.Batch) {
		in <- capture.Batch{Position: "p1", Items: rowsOf(of("events", "s1", "2", "s3"), of("jobs", "s4"))}
		in <- capture.Batch{Position: "p2", Items: of("events", "5")}
		in <- capture.Batch{Marks: []string{"there"}}
		in <- capture.Batch{Position: "p3", Items: of("events", "s6"), Marks: []string{"here"}}
		synctest.Wait()
		in <- capture.Batch{Position: "p4", Items: of("events", "s7")}
		synctest.Wait()
		f.expect(t, f.events, "2 5 s7", 1, 2, 3)
		f.expect(t, f.jobs, "")
		newDesk().expect(t, "observed", f.observed, "map[events:3]")
		cp, _ := f.tracker.Watermark()
		newDesk().expect(t, "checkpoint", cp.Position, "")
	})
}

// TestTheMoreRowsAreUnsettledTheFewerAreLookedUp brings batches of 100 rows: each
// row that is settled makes all that follow suspect again.
func TestTheMoreRowsAreUnsettledTheFewerAreLookedUp(t *testing.T) {
	const rows = 100
	bring := func(f *feeding, in chan<- capture.Batch, prefix string, batches int) {
		for b := range batches {
			items := make([]store.Item, 0, rows)
			for i := range rows {
				items = append(items, of("events", fmt.Sprintf("%s-%d-%d", prefix, b, i))...)
			}
			in <- capture.Batch{Position: "p", Items: items}
			synctest.Wait()
		}
	}
	for _, tell := range []bool{true, false} {
		k := &known{tell: tell}
		catchingUp(t, k, func(f *feeding, in chan<- capture.Batch) {
			bring(f, in, "u", 16)
			want := 16
			if tell {
				want = 4 // in between 1, 3, 7 and 15 are spared
			}
			newDesk().expect(t, "looks among rows that are not settled", len(k.asked), want)
			bring(f, in, "s", 16) // two of them are spared still
			bring(f, in, "s", 16)
			looked := len(k.asked)
			bring(f, in, "s", 4)
			newDesk().expect(t, "looks among rows that are settled", len(k.asked)-looked, 4)
		})
	}
}

func TestATransactionThatIsSettledMovesTheCheckpoint(t *testing.T) {
	catchingUp(t, &known{}, func(f *feeding, in chan<- capture.Batch) {
		in <- capture.Batch{Items: of("events", "s1")} // its transaction goes on
		in <- capture.Batch{Position: "p1", Items: of("events", "s2")}
		synctest.Wait()
		cp, _ := f.tracker.Watermark()
		newDesk().expect(t, "checkpoint", cp.Position, "p1")
	})
}

func TestBatchesComeTogetherWhileTheStoreIsAsked(t *testing.T) {
	k := &known{takes: time.Second}
	catchingUp(t, k, func(_ *feeding, in chan<- capture.Batch) {
		for i := range 5000 {
			if i == 1 {
				synctest.Wait() // the store is asked for the first
			}
			in <- capture.Batch{Items: of("events", fmt.Sprint("s", i))}
		}
		pass(10 * time.Second)
		newDesk().expect(t, "rows of each call", k.asked, "[1 2000 2000 999]")
	})
}

func TestWithoutAnAnswerTheClaimsFindOut(t *testing.T) {
	catchingUp(t, &known{err: errors.New("away")}, func(f *feeding, in chan<- capture.Batch) {
		in <- capture.Batch{Position: "p1", Items: of("events", "s1", "2")}
		synctest.Wait()
		f.expect(t, f.events, "s1 2", 1, 2)
		newDesk().expect(t, "bytes", f.events.Stats().Bytes, 0) // a claim that reads a payload looks at its row
	})
}

func TestASourceThatEndsWhileTheRelayCatchesUp(t *testing.T) {
	f := newFeeding(DefaultConfig())
	f.BeginCatchUp(&known{})
	if err := f.run(capture.Batch{Position: "p1", Items: of("events", "1")}, capture.Batch{Position: "p2", Items: of("events", "2")}); err != nil {
		t.Fatal(err)
	}
	f.expect(t, f.events, "1 2", 1, 2)
}
