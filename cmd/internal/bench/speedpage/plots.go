package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
	"github.com/sluicebox/sluicebox/cmd/internal/bench/speedpage/chart"
)

// plotter draws the charts of one database.
type plotter struct {
	all      map[string]*bench.Result
	database string            // begins the names of the files
	files    map[string][]byte // by name
}

// add adds a chart and its picture on the page.
func (p *plotter) add(b *strings.Builder, name, title string, svg []byte) {
	file := p.database + "-" + name + ".svg"
	p.files[file] = svg
	fmt.Fprintf(b, "![%s](%s/%s)\n\n", title, chartFolder, file)
}

// sides draws measures of an entry as bars, one for each side.
func (p *plotter) sides(b *strings.Builder, entry string, measures ...string) {
	r := p.all[entry]
	if r == nil {
		return
	}
	c := chart.Bars{Title: serverName(r.Machine.Server) + ": " + titleOf(entry)}
	for _, name := range measures {
		g := chart.Group{Name: name}
		for i := range r.Measures {
			m := &r.Measures[i]
			if m.Name != name || m.Against == "" {
				continue
			}
			if len(g.Bars) == 0 {
				g.Bars = append(g.Bars, chart.Bar{Name: m.Side, Text: withUnit(m.Median, m.Unit), Value: m.Median})
			}
			g.Bars = append(g.Bars, chart.Bar{Name: m.Against, Text: withUnit(m.AgainstMedian, m.Unit), Value: m.AgainstMedian})
		}
		if len(g.Bars) > 0 {
			c.Groups = append(c.Groups, g)
		}
	}
	if len(c.Groups) > 0 {
		p.add(b, entry, c.Title, c.SVG())
	}
}

// serverName shortens a version to its number, for example MariaDB 10.11.19.
func serverName(version string) string {
	name, rest, _ := strings.Cut(version, " ")
	number, _, _ := strings.Cut(rest, " ")
	number, _, _ = strings.Cut(number, "-")
	return strings.TrimSpace(name + " " + number)
}

// growthChart is a measure over the entries whose names have a prefix and end with a number.
type growthChart struct {
	title, x, measure, unit, prefix string
	fromZero                        bool
}

// growth draws a measure of each side as a line, with a table of its values.
func (p *plotter) growth(b *strings.Builder, g growthChart) {
	c := chart.Lines{Title: g.title, X: g.x, Y: g.unit, FromZero: g.fromZero}
	add := func(name string, x, y float64) {
		i := slices.IndexFunc(c.Series, func(s chart.Series) bool { return s.Name == name })
		if i < 0 {
			i = len(c.Series)
			c.Series = append(c.Series, chart.Series{Name: name})
		}
		c.Series[i].X, c.Series[i].Y = append(c.Series[i].X, x), append(c.Series[i].Y, y)
	}
	var at []string
	for _, e := range suite() {
		r := p.all[e.name]
		x, err := strconv.ParseFloat(strings.TrimPrefix(e.name, g.prefix), 64)
		if r == nil || err != nil {
			continue
		}
		for i := range r.Measures {
			if m := &r.Measures[i]; m.Name == g.measure && m.Against != "" {
				if !slices.Contains(at, chart.Number(x)) {
					at = append(at, chart.Number(x))
					add("relay", x, m.Median)
				}
				add(m.Against, x, m.AgainstMedian)
			}
		}
	}
	if len(at) < 2 {
		return
	}

	p.add(b, g.prefix+g.measure, g.title, c.SVG())
	fmt.Fprintf(b, "| %s | %s |\n|---|%s\n", g.x, strings.Join(at, " | "), strings.Repeat("---|", len(at)))
	for _, s := range c.Series {
		values := make([]string, len(s.Y))
		for i, y := range s.Y {
			values[i] = bench.Number(y)
		}
		fmt.Fprintf(b, "| %s, %s | %s |\n", s.Name, g.unit, strings.Join(values, " | "))
	}
	b.WriteString("\n")
}
