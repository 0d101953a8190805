package blackbox

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// kindReport is what happened at the faults of one kind.
type kindReport struct {
	recovered []time.Duration // from the end of each fault
	again     int             // rows that arrived again
	effects   string
}

// chaosReport is the result of a run.
type chaosReport struct {
	title, command string
	lasted         time.Duration
	rate           int
	faults         int // steps of two count twice
	kinds          map[string]*kindReport
	recovered      []time.Duration // of all steps

	rows, poisoned, lost, outOfOrder, lies, bodies, duplicates, most, odd int
	replayed, deleted                                                     int
	drained                                                               time.Duration // the longest
	relays, sizes                                                         []string
	machine, posted                                                       string
	picture                                                               string // its line of the page

	complete, failed bool
	wrongs           []string // what failed, in a line each
}

func (r *chaosReport) kind(name string) *kindReport {
	if r.kinds[name] == nil {
		r.kinds[name] = &kindReport{}
	}
	return r.kinds[name]
}

// add takes the verdict of a phase.
func (r *chaosReport) add(v *verdict) {
	r.rows, r.poisoned, r.lost = r.rows+v.Rows, r.poisoned+v.Failed, r.lost+v.Lost
	r.outOfOrder, r.lies, r.bodies = r.outOfOrder+v.OutOfOrder, r.lies+v.FalseCompleted, r.bodies+v.BodyDiffers
	r.duplicates, r.most = r.duplicates+v.Duplicates, r.most+v.most
	r.odd += len(v.wrongFailed) + len(v.ghosts) + len(v.unexplained)
	for kinds, n := range v.again {
		for name := range strings.SplitSeq(kinds, " and also ") {
			r.kind(name).again += n
		}
	}
}

// markdown is a section of deploy/faults.md.
func (r *chaosReport) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", r.title)
	fmt.Fprintf(&b, "`%s`: %d faults of %d kinds in %s, about %d rows/s.\n\n", r.command, r.faults, len(r.kinds), r.lasted.Round(time.Second), r.rate)
	switch {
	case !r.complete:
		fmt.Fprintf(&b, "**It ended early.**\n\n")
	case r.failed:
		fmt.Fprintf(&b, "**It failed.**\n\n")
	}
	for _, text := range r.wrongs {
		fmt.Fprintf(&b, "- %s\n", text)
	}
	if len(r.wrongs) > 0 {
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "| Invariant | Result |\n|---|---|\n")
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, fmt.Sprintf(format, args...))
	}
	line("lost", "%d of %d rows", r.lost, r.rows)
	line("first arrivals out of order in their group", "%d", r.outOfOrder)
	line("COMPLETED without an arrival", "%d", r.lies)
	line("body differs", "%d", r.bodies)
	line("FAILED, or arrived, without cause", "%d", r.odd)
	line("FAILED, all poisoned on purpose", "%d", r.poisoned)
	line("arrived again", "%d; the bound is the %d rows that arrived near a fault", r.duplicates, r.most)
	line("sent by replays", "%d", r.replayed)
	line("deleted after their retention", "%d", r.deleted)
	line("written over HTTP", "%s", r.posted)
	line("drained after the faults ended", "%s at most", r.drained.Round(10*time.Millisecond))
	line("recovered, over all faults", "p50 %s, p95 %s, max %s", quantile(r.recovered, .5), quantile(r.recovered, .95), quantile(r.recovered, 1))
	for _, text := range r.relays {
		line("relay", "%s", text)
	}
	for _, text := range r.sizes {
		line("size", "%s", text)
	}
	line("the machine", "%s", r.machine)
	if r.picture != "" {
		b.WriteString("\n" + strings.TrimRight(r.picture, "\n") + "\n")
	}
	fmt.Fprintf(&b, "\n| Fault | Times | Acted | Recovered p50 | p95 | max | Arrived again |\n|---|--:|--:|--:|--:|--:|--:|\n")
	names := make([]string, 0, len(r.kinds))
	for name := range r.kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		k := r.kinds[name]
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %d |\n", name, len(k.recovered), k.effects, quantile(k.recovered, .5), quantile(k.recovered, .95), quantile(k.recovered, 1), k.again)
	}
	return b.String() + "\n"
}

// quantile is a quantile of times.
func quantile(times []time.Duration, q float64) string {
	if len(times) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%.1f s", sorted[int(q*float64(len(sorted)-1)+0.5)].Seconds())
}

// faultsHead is the beginning of the page.
const faultsHead = `# Faults from a seed

` + "`make faults`" + ` runs two relays, eight writers and a receiver, and draws faults from a seed.
After every ten, everything has to be drained within 60 s, and an oracle joins what was committed, what arrived, and what the
tables say. Recovered is the time from the end of a fault until a row that was
committed then arrives, and none has waited for more than 0.5 s. Rows that arrived again are counted at the fault that ran when
they had arrived before. Of two faults at once, each counts all of it.
A row whose answer took the receiver a second or more may arrive again without a fault, because request-timeout is 2 s: for
example if the machine stood still.
Acted is how often a fault did something, for example how many answers or rows it changed; the others act when they begin. A run
fails if a fault never acts. A ninth writer sends rows over HTTP to one relay or the other.
A seed gives the same faults until a kind is added. Sizes are medians of the first and of the last quarter of the run:
the relay that leads has more of each. The machine is what the run got of it: a stall is a time in which no goroutine of the tests ran.

`

// save puts the section into a page, in place of an earlier one with its title. It keeps the notes
// between faultsHead and the sections.
func (r *chaosReport) save(file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	var sections []string
	head := faultsHead
	if begin, rest, found := strings.Cut(string(text), "\n## "); found {
		if notes, same := strings.CutPrefix(begin, faultsHead); same && notes != "" {
			head += strings.TrimRight(notes, "\n") + "\n\n"
		}
		for section := range strings.SplitSeq(rest, "\n## ") {
			if !strings.HasPrefix(section, r.title+"\n") {
				sections = append(sections, "## "+strings.TrimRight(section, "\n")+"\n\n")
			}
		}
	}
	sections = append(sections, r.markdown())
	slices.Sort(sections)
	page := strings.TrimRight(head+strings.Join(sections, ""), "\n") + "\n"
	return os.WriteFile(file, []byte(page), 0o644) //nolint:gosec // a page of the documentation
}
