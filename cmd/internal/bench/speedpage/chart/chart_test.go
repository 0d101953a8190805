package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// element is one element of a picture.
type element struct {
	name, text string
	attr       map[string]string
}

// parse returns the elements of a picture, which is well-formed XML.
func parse(t *testing.T, svg []byte) (all []element) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(string(svg)))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, attr: map[string]string{}}
			for _, a := range token.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			all = append(all, e)
		case xml.CharData:
			all[max(0, len(all)-1)].text += strings.TrimSpace(string(token))
		}
	}
}

func (e *element) number(t *testing.T, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(e.attr[name], 64)
	if err != nil {
		t.Fatalf("%s of %+v: %v", name, e, err)
	}
	return v
}

func named(all []element, name string) (some []element) {
	return slices.DeleteFunc(slices.Clone(all), func(e element) bool { return e.name != name })
}

// expectTexts expects each text, and that every text is within the picture.
func expectTexts(t *testing.T, all []element, want ...string) {
	t.Helper()
	var have []string
	for _, e := range named(all, "text") {
		have = append(have, e.text)
		if x, y := e.number(t, "x"), e.number(t, "y"); x < 0 || x > all[0].number(t, "width") || y < 0 || y > all[0].number(t, "height") {
			t.Errorf("the text %q is outside of the picture", e.text)
		}
	}
	for _, text := range want {
		if !slices.Contains(have, text) {
			t.Errorf("there is no text %q: %q", text, have)
		}
	}
}

func TestLinesHaveLabelsAndLogarithmicAxes(t *testing.T) {
	l := Lines{Title: "Latency <p99>", X: "rows/s", Y: "ms", Series: []Series{
		{"relay", []float64{10, 100, 1000}, []float64{1, 10, 100}},
		{"floor", []float64{10, 100, 1000}, []float64{2, 30, 100}},
		{"other", []float64{10, 100, 1000}, []float64{4, 40, 99}},
	}}
	all := parse(t, l.SVG())
	expectTexts(t, all, "Latency <p99>", "rows/s", "ms", "relay", "floor", "other", "10", "1 000", "100")
	lines := named(all, "polyline")
	if len(lines) != 3 {
		t.Fatalf("there are %d lines, want 3", len(lines))
	}
	var xs, ys []float64
	for point := range strings.FieldsSeq(lines[0].attr["points"]) {
		x, y, _ := strings.Cut(point, ",")
		px, _ := strconv.ParseFloat(x, 64)
		py, _ := strconv.ParseFloat(y, 64)
		xs, ys = append(xs, px), append(ys, py)
	}
	same := func(a, b float64) bool { return math.Abs(a-b) < 0.3 }
	if len(xs) != 3 || !same(xs[1]-xs[0], xs[2]-xs[1]) || !same(ys[0]-ys[1], ys[1]-ys[2]) || ys[0] <= ys[1] {
		t.Errorf("each step is by a factor of ten, but the points are %v, %v", xs, ys)
	}
	var labels []float64 // of the lines that end at the same point
	for _, e := range named(all, "text") {
		if strings.HasPrefix(e.attr["class"], "f") {
			labels = append(labels, e.number(t, "y"))
		}
	}
	slices.Sort(labels)
	if len(labels) != 3 || labels[1]-labels[0] < labelHeight || labels[2]-labels[1] < labelHeight {
		t.Errorf("the labels overlap: %v", labels)
	}
}

func TestAnAxisFromZeroIsLinear(t *testing.T) {
	l := Lines{Title: "Drain", X: "groups", Y: "rows/s", FromZero: true, Series: []Series{{"relay", []float64{10, 1000}, []float64{20_000, 40_000}}}}
	all := parse(t, l.SVG())
	expectTexts(t, all, "0", "40 000")
	circles := named(all, "circle")
	zero := float64(height - bottom)
	if got := (zero - circles[1].number(t, "cy")) / (zero - circles[0].number(t, "cy")); math.Abs(got-2) > 0.01 {
		t.Errorf("twice the value is %v times as high", got)
	}
}

// TestAxesIncludeAllValues: with a few ticks, whatever the values are.
func TestAxesIncludeAllValues(t *testing.T) {
	for _, values := range [][]float64{{0.3, 0.31}, {1}, {1.02, 15571}, {31490, 75847}, {9, 11}, {0.01, 0.9}, {10, 100}} {
		for name, of := range map[string]func([]float64, float64, float64) (axis, []float64){"log": logAxis, "zero": zeroAxis} {
			a, ticks := of(values, 0, 1)
			low, high := a.at(slices.Min(values)), a.at(slices.Max(values))
			if low < 0 || high > 1 || len(ticks) < 2 || len(ticks) > 9 || !slices.IsSorted(ticks) {
				t.Errorf("%s axis of %v: from %v to %v, ticks %v", name, values, low, high, ticks)
			}
		}
	}
}

func TestBarsAreAsLongAsTheirValues(t *testing.T) {
	b := Bars{Title: "Drain", Groups: []Group{
		{"p50", []Bar{{"relay", "2 ms", 2}, {"floor", "1 ms", 1}}},
		{"p99", []Bar{{"relay", "30 ms", 30}, {"floor", "60 ms", 60}}},
	}}
	all := parse(t, b.SVG())
	expectTexts(t, all, "Drain", "p50", "p99", "relay", "floor", "2 ms", "60 ms")
	bars := named(all, "rect")[1:] // the first is the background
	if len(bars) != 4 {
		t.Fatalf("there are %d bars, want 4", len(bars))
	}
	if a, b := bars[0].number(t, "width")/bars[1].number(t, "width"), bars[2].number(t, "width")/bars[3].number(t, "width"); math.Abs(a-2) > 0.01 || math.Abs(b-0.5) > 0.01 {
		t.Errorf("the bars are %v and %v times as long as their neighbours, want 2 and 0.5", a, b)
	}
	if bars[0].attr["class"] != bars[2].attr["class"] || bars[0].attr["class"] == bars[1].attr["class"] {
		t.Errorf("the colours are %v", bars)
	}
}

// TestBothThemesHaveAllColours: text, background and each series.
func TestBothThemesHaveAllColours(t *testing.T) {
	all := parse(t, (&Bars{Title: "x"}).SVG())
	light, dark, found := strings.Cut(named(all, "style")[0].text, "@media (prefers-color-scheme:dark)")
	if !found {
		t.Fatal("there is no dark theme")
	}
	for _, theme := range []string{light, dark} {
		for _, want := range []string{"text{", ".back{fill:", ".grid{stroke:", ".tick{", ".s4{stroke:", ".f4{fill:"} {
			if !strings.Contains(theme, want) {
				t.Errorf("%q is not in the theme %s", want, theme)
			}
		}
	}
}

// A picture of panels has the lines and labels of each below the one before, and a timeline begins at zero and
// has no marks. Values may be zero.
func TestPanelsOfTimelines(t *testing.T) {
	panel := func(name string, y ...float64) Lines {
		return Lines{X: "minutes", Y: name, FromZero: true, Timeline: true, Series: []Series{{name, []float64{0.5, 1, 12}, y}}}
	}
	all := parse(t, Panels("Sizes", panel("MiB", 10, 30, 20), panel("files", 0, 0, 0)))
	expectTexts(t, all, "Sizes", "MiB", "files", "minutes", "0", "30")
	if marks := named(all, "circle"); len(marks) != 0 {
		t.Errorf("%d marks", len(marks))
	}
	lines := named(all, "polyline")
	if len(lines) != 2 {
		t.Fatalf("there are %d lines, want 2", len(lines))
	}
	height := func(e element) (first float64) {
		_, y, _ := strings.Cut(strings.Fields(e.attr["points"])[0], ",")
		first, err := strconv.ParseFloat(y, 64)
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	if a, b := height(lines[0]), height(lines[1]); b < a+100 {
		t.Errorf("the lines begin at the heights %v and %v", a, b)
	}
}
