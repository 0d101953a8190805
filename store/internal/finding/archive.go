package finding

import (
	"fmt"
	"strings"
)

// Archive is the table that receives the rows of an outbox after their retention, beside
// the outbox.
type Archive struct {
	Outbox, Name string // quoted
	Have, Want   []ArchiveColumn
	Same         func(a, b string) bool
	Ident        func(name string) string
}

// ArchiveColumn is a column of an outbox or of its archive.
type ArchiveColumn struct {
	Name string
	Type string // "" if any type takes any value
}

// AddArchive adds a fault for each column of the outbox that the archive lacks or has with
// another type, because a conversion may change values.
func (l *List) AddArchive(a *Archive) {
	for _, want := range a.Want {
		have, found := a.find(want.Name)
		switch {
		case !found:
			l.AddFault(fmt.Sprintf("archive %s lacks column %s of %s", a.Name, want.Name, a.Outbox),
				strings.TrimRight(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", a.Name, a.Ident(want.Name), want.Type), " ")+";")
		case have.Type != want.Type:
			l.AddFault(fmt.Sprintf("column %s has type %s in archive %s, and type %s in %s", want.Name, have.Type, a.Name, want.Type, a.Outbox),
				fmt.Sprintf("-- give both columns the type %s", want.Type))
		}
	}
}

// AddNoArchive adds a fault for an archive that does not exist. create is the statement that
// creates it.
func (l *List) AddNoArchive(name, create string) {
	l.AddFault(fmt.Sprintf("archive %s does not exist, or the relay may not see it", name), create)
}

func (a *Archive) find(name string) (ArchiveColumn, bool) {
	for _, c := range a.Have {
		if a.Same(c.Name, name) {
			return c, true
		}
	}
	return ArchiveColumn{}, false
}
