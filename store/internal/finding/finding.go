// Package finding collects the findings of a database diagnosis.
package finding

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// List is a list of findings in check order.
type List struct {
	// Subject is the object being checked.
	Subject  string
	Findings []store.Finding
}

// Add adds a finding about the subject, with the lines of its remedy.
func (l *List) Add(grade store.Grade, text string, remedies ...string) {
	l.Findings = append(l.Findings, store.Finding{Grade: grade, Subject: l.Subject, Text: text, Remedy: strings.Join(remedies, "\n")})
}

// AddFault adds a fault.
func (l *List) AddFault(text string, remedies ...string) { l.Add(store.GradeFault, text, remedies...) }

// AddSetupError adds an error as a fault, without repeating the subject in its text.
func (l *List) AddSetupError(err *store.SetupError) {
	l.AddFault(strings.TrimPrefix(err.Problem, l.Subject+": "), err.Remedy)
}

// Encryption describes the connection to a server.
type Encryption struct {
	Local     bool // the server is on this machine
	Encrypted bool
	Verified  bool // the certificate of the server was checked
}

// AddEncryption reports how a server is connected. verify is the way to a checked certificate.
func (l *List) AddEncryption(server string, e Encryption, verify string) {
	switch {
	case e.Encrypted && (e.Verified || e.Local):
		l.Add(store.GradeOK, server+" with TLS")
	case e.Encrypted:
		l.Add(store.GradeAdvice, server+" with TLS, but the certificate is not verified: another machine can pose as the server and read the password and the rows", verify)
	case e.Local:
		l.Add(store.GradeOK, server+" without TLS, on this machine")
	default:
		l.Add(store.GradeAdvice, server+" without TLS: payloads are sent in clear text", verify)
	}
}

// maxClockSkew is the clock difference that is worth an advice.
const maxClockSkew = time.Second

// AddClockSkew compares the server's clock with this machine's, which was read before and
// after it. The skew matters because claim times come from this machine.
func (l *List) AddClockSkew(before, server, after time.Time) {
	const remedy = "synchronize both clocks (chrony, systemd-timesyncd): the relay writes claim times from its own clock"
	switch {
	case server.Sub(after) > maxClockSkew:
		l.Add(store.GradeAdvice, fmt.Sprintf("this machine is %s behind the server", server.Sub(after).Round(time.Millisecond)), remedy)
	case before.Sub(server) > maxClockSkew:
		l.Add(store.GradeAdvice, fmt.Sprintf("this machine is %s ahead of the server", before.Sub(server).Round(time.Millisecond)), remedy)
	default:
		l.Add(store.GradeOK, "this machine and the server differ by less than a second")
	}
}

// CountFaults returns the number of faults.
func (l *List) CountFaults() int { return store.CountFaults(l.Findings) }

// Err combines the faults into one *store.SetupError, nil if there are none.
func (l *List) Err() error { return store.FaultError(l.Findings) }
