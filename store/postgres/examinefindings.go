package postgres

import (
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
	relay    string           // its name; for a thorough one
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

func (c *checker) faults() int { return store.CountFaults(c.found) }

func (c *checker) err() error { return store.FaultError(c.found) }
