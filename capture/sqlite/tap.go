package sqlite

import (
	"context"
	"math"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Tap sends the rows that commit from now on, beside a running relay. It reads the same log
// and writes nothing. It calls begun once when it starts reading. It requires the log and
// its triggers, and creates none.
//
// Tap may be called once, in place of Open and Run, and there is nothing to acknowledge. A
// row is sent as it is when it is read. Tap does not send a row that the relay delivered and
// deleted before Tap read it. It returns when the context ends (its error), or with any
// error of Run.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	conn, err := sqlitestore.DialAsIs(ctx, s.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	st, err := s.readLogState(ctx, conn)
	switch {
	case err != nil:
		return err
	case st.lossReason != "":
		return &store.SetupError{Problem: "log is incomplete: " + st.lossReason, Remedy: "run `sluicebox init`"}
	}
	if err := s.resetState(st.id, formatPosition(st.counter)); err != nil {
		return err
	}
	begun()
	r := &run{source: s, conn: conn, reader: newLogReader(s, conn), out: out, last: st.counter, until: math.MaxInt64}
	return r.follow(ctx)
}
