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
}

// chaosReport is the result of a run.
type chaosReport struct {
	host, command string
	seed          uint64
	lasted        time.Duration
	rate          int
	faults        int // steps of two count twice
	kinds         map[string]*kindReport

	rows, failed, lost, outOfOrder, lies, bodies, duplicates, most, wrong int
	replayed                                                              int
	drained                                                               time.Duration // the longest
	retained                                                              int64         // bytes at the peak, -1: not measured
	relays                                                                []string
}

func (r *chaosReport) kind(name string) *kindReport {
	if r.kinds[name] == nil {
		r.kinds[name] = &kindReport{}
	}
	return r.kinds[name]
}

// add takes the verdict of the last phase, which covers all before.
func (r *chaosReport) add(v *verdict) {
	r.rows, r.failed, r.lost, r.outOfOrder, r.lies = v.Rows, v.Failed, v.Lost, v.OutOfOrder, v.FalseCompleted
	r.bodies, r.duplicates, r.most = v.BodyDiffers, v.Duplicates, v.most
	r.wrong = len(v.wrongFailed) + len(v.ghosts) + len(v.unexplained)
	for _, k := range r.kinds {
		k.again = 0
	}
	for kinds, n := range v.again {
		for name := range strings.SplitSeq(kinds, " and also ") {
			r.kind(name).again += n
		}
	}
}

// markdown is a section of deploy/faults.md.
func (r *chaosReport) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", r.host)
	fmt.Fprintf(&b, "`%s`: %d faults of %d kinds in %s, about %d rows/s.\n\n", r.command, r.faults, len(r.kinds), r.lasted.Round(time.Second), r.rate)
	fmt.Fprintf(&b, "| Invariant | Result |\n|---|---|\n")
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, fmt.Sprintf(format, args...))
	}
	line("lost", "%d of %d rows", r.lost, r.rows)
	line("first arrivals out of order in their group", "%d", r.outOfOrder)
	line("COMPLETED without an arrival", "%d", r.lies)
	line("body differs", "%d", r.bodies)
	line("FAILED, or arrived, without cause", "%d", r.wrong)
	line("FAILED, all poisoned on purpose", "%d", r.failed)
	line("arrived again", "%d; the bound is the %d rows that arrived within 2 s of a fault", r.duplicates, r.most)
	line("sent by replays", "%d", r.replayed)
	line("drained after the faults ended", "%s at most", r.drained.Round(10*time.Millisecond))
	if r.retained >= 0 {
		line("retained log at its peak", "%.1f MiB", float64(r.retained)/(1<<20))
	}
	for _, text := range r.relays {
		line("relay", "%s", text)
	}
	fmt.Fprintf(&b, "\n| Fault | Times | Recovered p50 | p95 | max | Arrived again |\n|---|--:|--:|--:|--:|--:|\n")
	names := make([]string, 0, len(r.kinds))
	for name := range r.kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		k := r.kinds[name]
		slices.Sort(k.recovered)
		at := func(q float64) string {
			if len(k.recovered) == 0 {
				return "-"
			}
			return fmt.Sprintf("%.1f s", k.recovered[int(q*float64(len(k.recovered)-1)+0.5)].Seconds())
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %d |\n", name, len(k.recovered), at(.5), at(.95), at(1), k.again)
	}
	return b.String() + "\n"
}

// faultsHead is the beginning of the page.
const faultsHead = `# Faults from a seed

` + "`make faults`" + ` runs two relays, eight writers and a receiver, and draws faults from a seed.
After every ten, everything has to be drained within 60 s, and an oracle joins what was committed, what arrived, and what the
tables say. Recovered is the time from the end of a fault until a row that was
committed then arrives, and none has waited for more than 0.5 s. Rows that arrived again are counted at the fault that ran when
they had arrived before. Of two faults at once, each counts all of it.
A seed gives the same faults until a kind is added.

`

// save puts the section into a page, in place of an earlier one of the host.
func (r *chaosReport) save(file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	var sections []string
	if _, rest, found := strings.Cut(string(text), "\n## "); found {
		for section := range strings.SplitSeq(rest, "\n## ") {
			if !strings.HasPrefix(section, r.host+"\n") {
				sections = append(sections, "## "+strings.TrimRight(section, "\n")+"\n\n")
			}
		}
	}
	sections = append(sections, r.markdown())
	slices.Sort(sections)
	page := strings.TrimRight(faultsHead+strings.Join(sections, ""), "\n") + "\n"
	return os.WriteFile(file, []byte(page), 0o644) //nolint:gosec // a page of the documentation
}
