package quickstart

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// namePrefix begins the name of what a quickstart makes in a server: its schema or
// database, and what the relay has there.
const namePrefix = "sluicebox_quickstart_"

// newName returns a name that no other quickstart has. It needs no quotes.
func newName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return namePrefix + hex.EncodeToString(b[:])
}

const (
	// closeTimeout is how long a farewell to the server may take.
	closeTimeout = time.Second
	// endTimeout is how long the sessions, which have been closed, may take to end in
	// the server before they are ended there, and killTimeout how long after that.
	endTimeout  = 10 * time.Second
	killTimeout = 5 * time.Second
)

// removalError says what is to be done by hand where a removal has failed.
func removalError(err error, statements []string) error {
	return fmt.Errorf("what the quickstart made in the database could not all be removed: %w\n"+
		"run there, as the same user:\n%s;", err, strings.Join(statements, ";\n"))
}

// leftoverNote says what quickstarts that were kept or killed have left, and which
// statements remove it; "" if there is nothing. where has a %s for the name.
func leftoverNote(names []string, where string, removal func(name string) []string) string {
	text := ""
	for _, name := range names {
		text += "An earlier quickstart was kept, or killed, and has left " + fmt.Sprintf(where, name) + " To remove it:\n"
		for _, statement := range removal(name) {
			text += "  " + statement + ";\n"
		}
	}
	return text
}
