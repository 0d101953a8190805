package quickstart

import (
	"fmt"
	"strings"
	"time"
)

// namePrefix is the prefix of all names that a quickstart uses on a server: of its
// schema or database, and of its relay with the slot and publication.
const namePrefix = "sluicebox_quickstart_"

// killTimeout is the time that killed sessions have to end.
const killTimeout = 5 * time.Second

// removalError adds the statements to run by hand after a failed removal.
func removalError(err error, statements []string) error {
	return fmt.Errorf("quickstart objects not completely removed: %w\n"+
		"run in the database, as the same user:\n%s;", err, strings.Join(statements, ";\n"))
}

// leftoverNote lists the leftovers of kept and killed quickstarts with the statements
// that remove them, or returns "" if names is empty. where has a %s for the name.
func leftoverNote(names []string, where string, removal func(name string) []string) string {
	text := ""
	for _, name := range names {
		text += "An earlier quickstart was kept, or killed, and left " + fmt.Sprintf(where, name) + " To remove it:\n"
		for _, statement := range removal(name) {
			text += "  " + statement + ";\n"
		}
	}
	return text
}
