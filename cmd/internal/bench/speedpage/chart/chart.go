// Package chart draws the charts of the speed pages as SVG: lines over a logarithmic axis, and
// bars. Colours follow the reader's light or dark theme, with a background of their own.
package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Series are the values of one line, with its points from left to right.
type Series struct {
	Name string
	X, Y []float64
}

// Lines is a chart of lines. The horizontal axis is logarithmic, and so is the vertical one, unless it
// begins at zero. Values of logarithmic axes are above zero.
type Lines struct {
	Title, X, Y string // the title, and the labels of the axes with their units
	FromZero    bool   // the vertical axis
	Timeline    bool   // the horizontal axis begins at zero too, and its many points have no marks
	Series      []Series
}

// Bar is one bar. Its text is the value with its unit.
type Bar struct {
	Name, Text string
	Value      float64
}

// Group is a group of bars that share a name.
type Group struct {
	Name string
	Bars []Bar
}

// Bars is a chart of horizontal bars from zero. Bars of one name have one colour.
type Bars struct {
	Title  string
	Groups []Group
}

const (
	width, height            = 720, 360
	left, right, top, bottom = 76, 168, 68, 56 // margins of the lines
	barLeft, barRight        = 176, 110        // margins of the bars
	barTop                   = 44
	barHeight, groupHead     = 24, 30
	labelHeight              = 16
	panelHeight, panelHead   = 210, 40
)

// style has the colours of both themes. The classes s0, s1, … are those of the series.
const style = `
text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-size:16px;font-weight:600}.tick{font-size:12px;fill:#59636e}
.back{fill:#fff}.grid{stroke:#d1d9e0;stroke-width:1}polyline{fill:none;stroke-width:2.5}
%s@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.tick{fill:#9198a1}.back{fill:#0d1117}.grid{stroke:#3d444d}
%s}
`

// colours of the series in the light and in the dark theme.
func colours() [][2]string {
	return [][2]string{{"#0969da", "#4493f8"}, {"#bc4c00", "#f0883e"}, {"#1a7f37", "#3fb950"}, {"#8250df", "#ab7df8"}, {"#6e7781", "#9198a1"}}
}

// canvas collects the elements of a picture.
type canvas struct{ bytes.Buffer }

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.Buffer, format+"\n", args...) }

func begin(w, h int, title string) *canvas {
	var themes [2]strings.Builder
	for i, pair := range colours() {
		for t := range themes {
			fmt.Fprintf(&themes[t], ".s%d{stroke:%s}.f%d{fill:%s}\n", i, pair[t], i, pair[t])
		}
	}
	c := &canvas{}
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`, w, h, w, h, escape(title))
	c.add("<style>"+style+"</style>", themes[0].String(), themes[1].String())
	c.add(`<rect class="back" width="%d" height="%d" rx="6"/>`, w, h)
	c.text("title", "start", 16, 28, title)
	return c
}

func (c *canvas) end() []byte {
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func (c *canvas) text(class, anchor string, x, y float64, text string) {
	c.add(`<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`, class, anchor, x, y, escape(text))
}

func (c *canvas) grid(x1, y1, x2, y2 float64) {
	c.add(`<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x1, y1, x2, y2)
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a buffer takes everything
	return b.String()
}

// axis maps values to coordinates, by their logarithm unless it begins at zero.
type axis struct {
	low, high float64 // values
	from, to  float64 // coordinates
}

func (a *axis) at(v float64) float64 {
	if a.low == 0 {
		return a.from + (a.to-a.from)*v/a.high
	}
	return a.from + (a.to-a.from)*math.Log(v/a.low)/math.Log(a.high/a.low)
}

// logAxis returns an axis from the last tick below the values to the first tick above, and its
// ticks: the powers of ten, and their multiples by 2 and 5 if the powers are few.
func logAxis(values []float64, from, to float64) (a axis, ticks []float64) {
	low, high := slices.Min(values), slices.Max(values)
	factors := []float64{1}
	if high/low < 200 {
		factors = []float64{1, 2, 5}
	}
	for e := math.Floor(math.Log10(low)); ; e++ {
		for _, f := range factors {
			tick := f * math.Pow(10, e)
			if len(ticks) > 0 && tick <= low {
				ticks = ticks[:0] // the next tick is below them too
			}
			ticks = append(ticks, tick)
			if tick >= high && len(ticks) > 1 {
				return axis{low: ticks[0], high: tick, from: from, to: to}, ticks
			}
		}
	}
}

// zeroAxis returns an axis from zero to the first tick above the values, and its ticks: 4 to 8.
func zeroAxis(values []float64, from, to float64) (a axis, ticks []float64) {
	high := slices.Max(values)
	if high <= 0 {
		high = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(high)))
	step := unit / 5
	for _, wider := range []float64{unit / 2, unit, 2 * unit} {
		if high > 3*wider {
			step = wider
		}
	}
	for n := 0.0; ; n++ {
		if ticks = append(ticks, n*step); n*step >= high {
			return axis{high: n * step, from: from, to: to}, ticks
		}
	}
}

// SVG draws the chart.
func (l *Lines) SVG() []byte {
	c := begin(width, height, l.Title)
	l.draw(c, top, height-bottom)
	return c.end()
}

// Panels draws charts of equal horizontal axes below each other, in one picture. Their titles are unused.
func Panels(title string, panels ...Lines) []byte {
	c := begin(width, panelHeight*len(panels)+barTop, title)
	for i := range panels {
		from := float64(barTop + i*panelHeight)
		panels[i].draw(c, from+panelHead, from+panelHeight-bottom)
	}
	return c.end()
}

// draw draws the lines between two heights, with their labels around them.
func (l *Lines) draw(c *canvas, high, low float64) {
	var xs, ys []float64
	for _, s := range l.Series {
		xs, ys = append(xs, s.X...), append(ys, s.Y...)
	}
	axisOf := logAxis
	if l.FromZero {
		axisOf = zeroAxis
	}
	y, ticks := axisOf(ys, low, high)
	for _, tick := range ticks {
		c.grid(left, y.at(tick), width-right, y.at(tick))
		c.text("tick", "end", left-8, y.at(tick)+4, Number(tick))
	}
	slices.Sort(xs)
	x, marks := axis{low: xs[0], high: xs[len(xs)-1], from: left + 12, to: width - right - 12}, slices.Compact(xs)
	if l.Timeline {
		x, marks = zeroAxis(xs, left, width-right)
	}
	for _, tick := range marks {
		c.grid(x.at(tick), high, x.at(tick), low)
		c.text("tick", "middle", x.at(tick), low+18, Number(tick))
	}
	c.text("", "middle", (left+width-right)/2, low+42, l.X)
	c.text("tick", "start", 16, high-18, l.Y)

	labels := make([]float64, len(l.Series)) // their heights
	for i, s := range l.Series {
		labels[i] = y.at(s.Y[len(s.Y)-1])
		var points strings.Builder
		for k := range s.X {
			fmt.Fprintf(&points, "%.1f,%.1f ", x.at(s.X[k]), y.at(s.Y[k]))
			if !l.Timeline {
				c.add(`<circle class="f%d" cx="%.1f" cy="%.1f" r="3.5"/>`, i, x.at(s.X[k]), y.at(s.Y[k]))
			}
		}
		c.add(`<polyline class="s%d" points="%s"/>`, i, strings.TrimSpace(points.String()))
	}
	for i, at := range spread(labels, low) {
		c.text(fmt.Sprintf("f%d", i), "start", width-right+2, at+4, l.Series[i].Name)
	}
}

// spread moves labels apart that would overlap, none below the axis.
func spread(at []float64, low float64) []float64 {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, at[a]-at[b])) })
	moved := slices.Clone(at)
	for k := 1; k < len(order); k++ {
		moved[order[k]] = max(moved[order[k]], moved[order[k-1]]+labelHeight)
	}
	for k := len(order) - 1; k >= 0; k-- {
		limit := low - float64(len(order)-1-k)*labelHeight
		moved[order[k]] = min(moved[order[k]], limit)
	}
	return moved
}

// SVG draws the chart.
func (b *Bars) SVG() []byte {
	h, most := barTop, 0.0
	var names []string
	for _, g := range b.Groups {
		h += groupHead + barHeight*len(g.Bars)
		for _, bar := range g.Bars {
			if !slices.Contains(names, bar.Name) {
				names = append(names, bar.Name)
			}
		}
	}
	c := begin(width, h+16, b.Title)
	at := float64(barTop)
	for _, g := range b.Groups {
		c.text("tick", "start", 16, at+18, g.Name)
		at += groupHead
		most = 0 // each group has its own scale, because it has its own measure
		for _, bar := range g.Bars {
			most = max(most, bar.Value)
		}
		for _, bar := range g.Bars {
			long := max(1, (width-barLeft-barRight)*bar.Value/max(most, math.SmallestNonzeroFloat64))
			c.text("", "end", barLeft-8, at+16, bar.Name)
			c.add(`<rect class="f%d" x="%d" y="%.1f" width="%.1f" height="%d" rx="2"/>`, slices.Index(names, bar.Name), barLeft, at+3, long, barHeight-6)
			c.text("", "start", barLeft+long+8, at+16, bar.Text)
			at += barHeight
		}
	}
	return c.end()
}

// Number formats a tick, with thousands apart.
func Number(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 64)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + " " + whole[i:]
	}
	if rest != "" {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return whole
}
