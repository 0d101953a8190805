package bench

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// processor returns the name of the processor, on Linux.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// ticks is the time of the processors since boot, in clock ticks: the total, and the time
// stolen by the hypervisor.
type ticks struct{ all, stolen float64 }

// processorTicks reads the first line of proc(5)'s stat: user, nice, system, idle, iowait,
// irq, softirq, steal. The later fields are included in these.
func processorTicks() (t ticks) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil || i > 8 {
			continue
		}
		if t.all += n; i == 8 {
			t.stolen = n
		}
	}
	return t
}

// since returns the percentage that was stolen since an earlier reading.
func (t ticks) since(before ticks) float64 {
	if t.all <= before.all {
		return 0
	}
	return 100 * (t.stolen - before.stolen) / (t.all - before.all)
}
