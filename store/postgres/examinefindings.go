package postgres

import (
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
)

// checker gathers findings.
type checker struct {
	conn *pgx.Conn
	// thorough says that advice is wanted too, and what may pass by itself.
	thorough bool
	now      func() time.Time // of this machine; for a thorough one
	role     string           // quoted
	subject  string           // of what is looked at
	found    []store.Finding
}

func (c *checker) add(grade store.Grade, text string, remedies ...string) {
	c.found = append(c.found, store.Finding{Grade: grade, Subject: c.subject, Text: text, Remedy: strings.Join(remedies, "\n")})
}

// fault adds what keeps the relay from working.
func (c *checker) fault(text string, remedies ...string) { c.add(store.Fault, text, remedies...) }

// setup adds a fault that was found elsewhere, whose text names the subject too.
func (c *checker) setup(err *store.SetupError) {
	c.fault(strings.TrimPrefix(err.Problem, c.subject+": "), err.Remedy)
}

// faults counts the faults so far.
func (c *checker) faults() (n int) {
	for i := range c.found {
		if c.found[i].Grade == store.Fault {
			n++
		}
	}
	return n
}

// err puts the faults into one error, each remedy once.
func (c *checker) err() error {
	var problems, remedies []string
	for _, f := range c.found {
		if f.Grade != store.Fault {
			continue
		}
		problems = append(problems, f.Subject+": "+f.Text)
		for _, r := range strings.Split(f.Remedy, "\n") {
			if !slices.Contains(remedies, r) {
				remedies = append(remedies, r)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return &store.SetupError{
		Problem: strings.Join(problems, "\n"),
		Remedy:  "to mend it:\n" + strings.Join(remedies, "\n"),
	}
}
