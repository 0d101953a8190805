package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// The sides of --compare.
const (
	sideA = "A"
	sideB = "B"
)

// Files are the two configuration files of --compare A.yaml B.yaml.
type Files struct{ A, B string }

// Decode implements kong.MapperValue: the flag takes two values.
func (f *Files) Decode(ctx *kong.DecodeContext) error {
	if err := ctx.Scan.PopValueInto("file", &f.A); err != nil {
		return err
	}
	if next := ctx.Scan.Peek(); !next.IsValue() {
		return errors.New("needs two configuration files: --compare A.yaml B.yaml")
	}
	return ctx.Scan.PopValueInto("file", &f.B)
}

// given reports whether --compare was given.
func (f *Files) given() bool { return *f != Files{} }

// comparing returns the scenario with two sides: its relay with each of two configurations. All
// measures of the relay are compared, without goals.
func (b *bench) comparing(sc *scenario, files Files) (*scenario, error) {
	relay := sc.sides[0]
	both := *sc
	both.sides, both.compare = nil, nil
	for _, s := range []struct{ name, path string }{{sideB, files.B}, {sideA, files.A}} {
		f, err := loadRelayFile(s.path)
		if err != nil {
			return nil, err
		}
		turn := *b
		turn.use(f)
		if err := turn.checkRelayFile(); err != nil {
			return nil, err
		}
		if len(f.unused) > 0 {
			b.logf("%s: not used, because the benchmark sets its own: %s", f.path, strings.Join(f.unused, ", "))
		}
		both.sides = append(both.sides, side{name: s.name, run: relay.run, file: f})
	}
	both.sides[0].setUp = relay.setUp // once for both

	compared := slices.Clone(sc.compare)
	if sc.writesRows() {
		compared = append(compared, comparison{measure: cpuPerRow, unit: "µs"}, comparison{measure: cpuPerRowBoth, unit: "µs"})
	}
	compared = append(compared, comparison{measure: peakRSS, unit: "MiB"})
	for _, c := range compared {
		known := func(other comparison) bool { return other.measure == c.measure }
		if !slices.ContainsFunc(both.compare, known) {
			both.compare = append(both.compare, comparison{measure: c.measure, unit: c.unit, against: sideA})
		}
	}
	return &both, nil
}

// use prepares a turn with the configuration of a side; nil is the one of the options.
func (b *bench) use(f *relayFile) {
	if b.file = f; f != nil {
		b.opts.Senders, b.opts.Batch = f.delivery.MaxConcurrentGroups, f.delivery.APIBatchSize
	}
}

// comparisonText returns the head and the lines of the table of --compare, with A before B.
func (r *Result) comparisonText() string {
	var text strings.Builder
	fmt.Fprintf(&text, "A: %s\nB: %s\n\n\tA\tB\tB / A\tof the turns\t\n", r.Settings.Compare.A, r.Settings.Compare.B)
	for i := range r.Measures {
		m := &r.Measures[i]
		if m.Note != "" {
			fmt.Fprintf(&text, "%s\t%s\t\t\t\t\n", m.Name, m.Note)
			continue
		}
		span := ""
		if each := ratios(m.Turns, m.AgainstTurns); len(each) > 1 {
			span = fmt.Sprintf("%.2f to %.2f", slices.Min(each), slices.Max(each))
		}
		fmt.Fprintf(&text, "%s\t%s\t%s\t%.2f\t%s\t\n", m.Name, withUnit(m.AgainstMedian, m.Unit), withUnit(m.Median, m.Unit), m.Ratio, span)
	}
	return text.String()
}
