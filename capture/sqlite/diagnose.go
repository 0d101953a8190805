package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Diagnose checks the log and its triggers without changing anything. A missing log or
// trigger is not a fault, because the relay creates it and reads earlier inserts from the
// tables. An error means that the log could not be checked. Diagnose leaves out the problems
// that the store's Diagnose reports.
func (s *Source) Diagnose(ctx context.Context) ([]store.Finding, error) {
	conn, err := sqlitestore.DialAsIs(ctx, s.path)
	var st logState
	if err == nil {
		defer conn.Close()
		st, err = s.readLogState(ctx, conn)
	}
	finding := store.Finding{Grade: store.GradeOK, Subject: "log"}
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		return nil, nil // the store reports it
	case err != nil:
		return nil, err
	case st.id == "":
		finding.Text = "log does not exist yet; `sluicebox init` or the relay creates it"
	case st.incomplete():
		finding.Text = fmt.Sprintf("log is incomplete; the relay will complete it and take a snapshot of the tables: %s", st.lossReason)
	default:
		finding.Text = "log exists, with a trigger on each outbox"
	}
	return []store.Finding{finding}, nil
}
