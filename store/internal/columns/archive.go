package columns

import (
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// CopyInto begins the statement that copies whole rows into the outbox's archive. The caller
// adds SELECT * of its rows, not the columns: if the table has got a column that this
// description lacks, the statement fails and loses no value. ident quotes a name.
func (t *Described[C]) CopyInto(archive string, ident func(name string) string) string {
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = ident(c.Name())
	}
	return "INSERT INTO " + archive + " (" + strings.Join(names, ", ") + ")"
}

// CheckCopied returns a *store.RefusedError unless as many rows were copied into the archive
// as were deleted, for example because a trigger of the archive skips rows.
func CheckCopied(archive string, copied, deleted int64) error {
	if copied == deleted {
		return nil
	}
	return &store.RefusedError{Err: fmt.Errorf("archive %s took %d of %d rows; remove the trigger or rule that skips rows", archive, copied, deleted)}
}
