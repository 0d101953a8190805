package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// Diagnose looks at the log and its triggers. It changes nothing. What is missing is
// no fault: the relay makes it, and finds in the tables what was inserted before.
// An error means that the log could not be looked at. What the store examines too,
// it leaves to it.
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
		return nil, nil // the store says so
	case err != nil:
		return nil, err
	case st.id == "":
		finding.Text = "it is not there yet; `sluicebox init` or the relay makes it"
	case st.incomplete():
		finding.Text = fmt.Sprintf("the relay will complete it and read the tables for what it held: %s", st.lossReason)
	default:
		finding.Text = "it is there, with a trigger for each outbox"
	}
	return []store.Finding{finding}, nil
}
