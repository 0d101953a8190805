// Package propose guesses the layout of a table that holds an outbox, and writes the section of
// the configuration for it. Every key has a comment that says why, and how sure the guess is.
//
// The package reads no database: the stores describe a table as a [store.TableInfo]. Propose
// never fails over a doubt. It makes the most likely guess, and marks it as a decision.
package propose

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// sureness is how sure a guess is.
type sureness uint8

const (
	sure   sureness = iota + 1 // the database says so
	likely                     // the names say so
	decide                     // somebody has to decide
)

// note says why a key has its value.
type note struct {
	is   sureness
	text string
}

func (n note) String() string {
	switch n.is {
	case sure:
		return "sure: " + n.text
	case likely:
		return "likely: " + n.text
	case decide:
		return "DECIDE: " + n.text
	}
	return n.text
}

func because(is sureness, format string, args ...any) note {
	return note{is, fmt.Sprintf(format, args...)}
}

// entry is a key of the configuration. Its value is a string, a list of strings, an int, a bool
// or a section.
type entry struct {
	key   string
	value any
	note
}

type section []entry

func (s *section) add(key string, value any, n note) { *s = append(*s, entry{key, value, n}) }

// Request is a table with the parts of the configuration on which its outbox depends.
type Request struct {
	Table *store.TableInfo
	// Sinks are the names of the configured sinks, sorted. Without any, the proposal has one.
	Sinks []string
	// FlowCatalyst reports whether a sink is of that type.
	FlowCatalyst func(sink string) bool
	// Timed: dispatch.takeover is timeout.
	Timed bool
	// Preset: the configuration has the section flowcatalyst, beside which it has no outboxes.
	Preset bool
}

// RequestOf returns the request for a table and a configuration, which may be incomplete.
func RequestOf(t *store.TableInfo, s *config.Settings) *Request {
	r := &Request{Table: t, Timed: s.Dispatch.Takeover == "timeout", Preset: s.FlowCatalyst != nil}
	for name := range s.Sinks {
		r.Sinks = append(r.Sinks, name)
	}
	slices.Sort(r.Sinks)
	r.FlowCatalyst = func(sink string) bool { return s.Sinks[sink].Type == config.SinkFlowCatalyst }
	return r
}

// Proposal is a section of the configuration.
type Proposal struct {
	// Layout is the value of the key layout.
	Layout string
	// Decisions is the number of keys marked DECIDE.
	Decisions int

	head []string
	body section
}

// Propose returns the configuration for a table. The error is a *store.SetupError if the table
// has no column for the id, or none for the payload.
func Propose(r *Request) (*Proposal, error) {
	g := &guesser{Request: r, taken: map[string]string{}}
	p := &Proposal{}
	outbox, err := g.outbox(p)
	if err != nil {
		return nil, err
	}
	p.body.add("outboxes", []section{outbox}, note{})
	g.addSinks(p)
	if g.lease && !r.Timed {
		p.body.add("dispatch", section{{"takeover", "timeout", because(sure, "columns with the end of a claim need it")}}, note{})
	}
	if g.Timed && !g.lease && p.Layout == store.CustomLayout && !g.claims() {
		g.remarks = append(g.remarks, "The configuration has dispatch.takeover: timeout, which needs the time of a claim, and no column holds it.")
	}
	p.Decisions = p.body.decisions()
	p.head = g.head(p)
	return p, nil
}

// claims reports whether a column holds the time of a claim.
func (g *guesser) claims() bool {
	return slices.ContainsFunc(g.columns, func(e entry) bool { return e.key == "claimed" })
}

func (s section) decisions() (n int) {
	for _, e := range s {
		if e.is == decide {
			n++
		}
		switch v := e.value.(type) {
		case section:
			n += v.decisions()
		case []section:
			for _, one := range v {
				n += one.decisions()
			}
		}
	}
	return n
}

// head returns the lines above the proposal.
func (g *guesser) head(p *Proposal) []string {
	from := "its columns"
	if g.Table.Documents {
		from = fmt.Sprintf("a sample of %d documents", g.Table.Sampled)
	}
	lines := []string{fmt.Sprintf("Proposal for %s of %s, from %s.", g.Table.Name, g.Table.Database, from)}
	switch p.Decisions {
	case 0:
		lines = append(lines, "Nothing needs a decision: check the lines marked likely.")
	case 1:
		lines = append(lines, "The line marked DECIDE needs your answer.")
	default:
		lines = append(lines, fmt.Sprintf("The %d lines marked DECIDE need your answer.", p.Decisions))
	}
	if g.Preset {
		lines = append(lines, "The configuration has the section flowcatalyst: write its tables as outboxes first, with its sink.")
	}
	if g.Table.SampleError != nil {
		lines = append(lines, "No rows were read: "+g.Table.SampleError.Error())
	}
	return append(lines, g.remarks...)
}

// oneLine returns a text for a comment. Names and values come from the database and may contain
// anything.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.Join(strings.Fields(text), " "))
}

// guesser collects the parts of a proposal.
type guesser struct {
	*Request
	taken   map[string]string // column: its key
	columns section
	remarks []string
	lease   bool
}

// outbox returns the entry of outboxes.
func (g *guesser) outbox(p *Proposal) (section, error) {
	var o section
	o.add("table", g.Table.Name, note{})
	if k := g.knownLayout(); k != nil {
		p.Layout = k.preset.Name
		g.addKnown(&o, k)
		return o, nil
	}
	p.Layout = store.CustomLayout
	o.add("layout", store.CustomLayout, because(sure, "no other project's table has these columns"))
	o.add("sink", g.sink(), g.sinkNote())
	if err := g.addID(); err != nil {
		return nil, err
	}
	state := g.state()
	if err := g.addPayload(); err != nil {
		return nil, err
	}
	path := g.addGroup()
	g.addKind(&o)
	g.addDescriptions()
	g.columns = append(g.columns, state.columns...)
	o.add("columns", g.columns, note{})
	o = append(o, path...)
	o = append(o, state.keys...)
	g.addOrder(&o)
	return o, nil
}

// defaultSink is the name of the sink that a proposal has for a configuration without any.
const defaultSink = "receiver"

// sink returns the sink of the outbox.
func (g *guesser) sink() string {
	if len(g.Sinks) == 0 {
		return defaultSink
	}
	return g.Sinks[0]
}

func (g *guesser) sinkNote() note {
	if len(g.Sinks) > 1 {
		return because(decide, "or %s", strings.Join(g.Sinks[1:], ", "))
	}
	return note{}
}

// platform reports whether the rows go to FlowCatalyst.
func (g *guesser) platform() bool { return len(g.Sinks) > 0 && g.FlowCatalyst(g.sink()) }

// addSinks adds a sink to a configuration without any.
func (g *guesser) addSinks(p *Proposal) {
	if len(g.Sinks) > 0 {
		return
	}
	address := section{{"type", config.SinkWebhook, note{}}, {"url", "https://receiver.example/events", because(decide, "the address that receives the rows")}}
	if isPlatformLayout(p.Layout) {
		address = section{{"type", config.SinkFlowCatalyst, note{}}, {"api-base-url", "https://platform.example", because(decide, "the address of the API")}}
	}
	p.body.add("sinks", section{{defaultSink, address, note{}}}, note{})
}
