package blackbox

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/speedpage/chart"
)

// samples are sizes over the time of a run, which show whether something grows.
type samples struct {
	mu   sync.Mutex
	from time.Time
	// of has a series for each measure and relay; the name of the log's is empty.
	of map[string]map[string]*chart.Series
}

// Measures of a run, in the order of their panels.
const (
	sampledMemory = "MiB RSS"
	sampledTasks  = "goroutines"
	sampledOpen   = "descriptors"
	sampledLog    = "MiB retained log"
)

func sampledMeasures() []string {
	return []string{sampledMemory, sampledTasks, sampledOpen, sampledLog}
}

// add notes a value.
func (s *samples) add(measure, name string, value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[measure] == nil {
		s.of[measure] = map[string]*chart.Series{}
	}
	one := s.of[measure][name]
	if one == nil {
		one = &chart.Series{Name: name}
		s.of[measure][name] = one
	}
	one.X, one.Y = append(one.X, time.Since(s.from).Minutes()), append(one.Y, value)
}

// sampleTimes is how many samples a run has at most.
const sampleTimes = 600

// sample measures every few seconds until the returned function is called. It waits for no
// relay that a fault froze.
func (c *chaos) sample(length time.Duration) (stop func()) {
	c.sampled = &samples{from: time.Now(), of: map[string]map[string]*chart.Series{}}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(max(2*time.Second, length/sampleTimes))
		defer tick.Stop()
		for {
			for i, r := range c.relays {
				r.weigh(fmt.Sprint("relay ", i+1), c.sampled)
			}
			c.measureLog()
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(end); <-ended }
}

// weigh notes a relay's memory, descriptors and goroutines, unless it is down.
func (r *chaosRelay) weigh(name string, to *samples) {
	dir := fmt.Sprintf("/proc/%d/", r.pid.Load())
	text, _ := os.ReadFile(dir + "status")
	for line := range strings.Lines(string(text)) {
		if kilobytes, is := strings.CutPrefix(line, "VmRSS:"); is {
			n, _ := strconv.Atoi(strings.Fields(kilobytes)[0])
			to.add(sampledMemory, name, float64(n)/1024)
		}
	}
	if open, err := os.ReadDir(dir + "fd"); err == nil && len(open) > 0 {
		to.add(sampledOpen, name, float64(len(open)))
	}
	_, metrics := ask(http.MethodGet, r.address+"/metrics", "")
	for line := range strings.Lines(metrics) {
		if n, is := strings.CutPrefix(line, "go_goroutines "); is {
			n, _ := strconv.Atoi(strings.TrimSpace(n))
			to.add(sampledTasks, name, float64(n))
		}
	}
}

// measureLog notes how much log the database keeps. That of MongoDB has a fixed size.
func (c *chaos) measureLog() {
	if n, err := c.retainedLog(); err == nil {
		c.sampled.add(sampledLog, "", float64(n)/(1<<20))
	}
}

// texts describes each relay: the medians of the first and the last quarter, and the peak.
func (s *samples) texts() (lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, measure := range sampledMeasures() {
		for _, name := range slices.Sorted(maps.Keys(s.of[measure])) {
			y := s.of[measure][name].Y
			quarter := (len(y) + 3) / 4
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %.0f %s at first, %.0f at last, %.0f at the peak",
				name, middle(y[:quarter]), measure, middle(y[len(y)-quarter:]), slices.Max(y))))
		}
	}
	return lines
}

func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// svg draws the samples over the minutes of the run, or returns nil if there are none.
func (s *samples) svg(title string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var panels []chart.Lines
	for _, measure := range sampledMeasures() {
		l := chart.Lines{X: "minutes", Y: measure, FromZero: true, Timeline: true}
		for _, name := range slices.Sorted(maps.Keys(s.of[measure])) {
			l.Series = append(l.Series, *s.of[measure][name])
		}
		if len(l.Series) > 0 {
			panels = append(panels, l)
		}
	}
	if len(panels) == 0 {
		return nil
	}
	return chart.Panels(title, panels...)
}

// savePicture writes the samples beside a page and returns the picture's line of the page.
func (s *samples) savePicture(page, title string) (string, error) {
	picture := s.svg("Sizes over the run, " + title)
	if picture == nil {
		return "", nil
	}
	folder := strings.TrimSuffix(filepath.Base(page), filepath.Ext(page))
	path := filepath.Join(filepath.Dir(page), folder)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	file := strings.NewReplacer(", ", "-", " ", "-").Replace(title) + ".svg"
	return fmt.Sprintf("![Sizes over the run](%s/%s)\n\n", folder, file), os.WriteFile(filepath.Join(path, file), picture, 0o644)
}
