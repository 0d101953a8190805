package bench

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
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

// clockTick is the unit of times in /proc, see proc(5). It is the same on every Linux.
const clockTick = 10 * time.Millisecond

// processStat is a process in /proc/PID/stat.
type processStat struct {
	parent int
	cpu    time.Duration // of the process and of its ended children
}

// readProcess reads the state of a process, on Linux.
func readProcess(pid int) (s processStat, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s, false
	}
	end := max(0, strings.LastIndexByte(string(text), ')'))        // of the name, which may contain any character
	fields := strings.Fields(string(text[min(end+1, len(text)):])) // from the third field on
	if len(fields) < 15 {
		return s, false
	}
	s.parent, _ = strconv.Atoi(fields[1])
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return s, false
		}
		s.cpu += time.Duration(n) * clockTick
	}
	return s, true
}

// treeCPU returns the processor time of a process and of all processes that it started, also
// ended ones. It returns 0 if there is no such process, or no /proc.
func treeCPU(root int) time.Duration {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	all := map[int]processStat{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if s, ok := readProcess(pid); ok {
				all[pid] = s
			}
		}
	}
	within := func(pid int) bool {
		for pid != 0 && pid != root {
			pid = all[pid].parent
		}
		return pid == root
	}
	var sum time.Duration
	for pid, s := range all {
		if within(pid) {
			sum += s.cpu
		}
	}
	return sum
}

// localProcess returns the id of a server's process, 0 if the server runs on another machine or
// in another namespace. host is the server's, with or without a port, and names are those that
// its program may have.
func localProcess(host string, pid int, names ...string) int {
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	if !store.Loopback(host) {
		return 0
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return 0
	}
	for arg := range strings.SplitSeq(string(text), "\x00") { // not only the first: a loader may run the program
		if slices.Contains(names, filepath.Base(arg)) {
			return pid
		}
	}
	return 0
}
