package blackbox

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// machine watches whether the run got the processors when it wanted them. A machine that stands still
// explains a slow recovery; it excuses none.
type machine struct {
	mu     sync.Mutex
	stalls []stall
	from   pressure
}

// stall is a time in which a goroutine of the tests should have run and did not.
type stall struct {
	at   time.Time // its end
	long time.Duration
}

// Of the heartbeat: its period, and the delay that counts as a stall.
const (
	heartbeat = 20 * time.Millisecond
	stalled   = 250 * time.Millisecond
)

// watch beats until the returned function is called.
func (m *machine) watch() (stop func()) {
	m.from = readPressure()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			now := time.Now()
			m.beat(now, now.Sub(last)-heartbeat)
			last = now
		}
	}()
	return func() { close(end); <-ended }
}

func (m *machine) beat(now time.Time, late time.Duration) {
	if late < stalled {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stalls = append(m.stalls, stall{now, late})
}

// since returns the stalls that ended after a time: how many, and the longest.
func (m *machine) since(at time.Time) (n int, most time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range slices.Backward(m.stalls) {
		if s.at.Before(at) {
			break
		}
		n, most = n+1, max(most, s.long)
	}
	return n, most
}

// said describes the machine since a time, with the pressure that was read then.
func (m *machine) said(at time.Time, then pressure) string {
	n, most := m.since(at)
	text := fmt.Sprintf("%d stalls of %s and more", n, stalled)
	if n > 0 {
		text += fmt.Sprintf(", %s at most", most.Round(10*time.Millisecond))
	}
	if now := readPressure(); now.known && then.known && now.at.After(then.at) {
		text += fmt.Sprintf("; a task waited for a processor in %.0f %% of the time, for a disk in %.0f %%",
			100*float64(now.cpu-then.cpu)/float64(now.at.Sub(then.at)), 100*float64(now.disk-then.disk)/float64(now.at.Sub(then.at)))
	}
	return text
}

// pressure is for how long any task of the machine has waited since its start (Linux, /proc/pressure).
type pressure struct {
	at        time.Time
	cpu, disk time.Duration
	known     bool
}

func readPressure() pressure {
	p := pressure{at: time.Now(), known: true}
	for file, to := range map[string]*time.Duration{"cpu": &p.cpu, "io": &p.disk} {
		text, err := os.ReadFile("/proc/pressure/" + file)
		_, total, found := strings.Cut(string(text), " total=")
		total, _, _ = strings.Cut(total, "\n")
		us, numberErr := strconv.ParseInt(total, 10, 64)
		if err != nil || !found || numberErr != nil {
			return pressure{}
		}
		*to = time.Duration(us) * time.Microsecond
	}
	return p
}

// A late heartbeat is a stall of the time in which it ended, and of no later one.
func TestFaultMachineStalls(t *testing.T) {
	t.Parallel()
	m, now := &machine{}, time.Now()
	m.beat(now, stalled-time.Millisecond)
	m.beat(now, 2*time.Second)
	if n, most := m.since(now); n != 1 || most != 2*time.Second {
		t.Errorf("%d stalls, %s at most, want the one of 2s", n, most)
	}
	if n, _ := m.since(now.Add(time.Millisecond)); n != 0 {
		t.Errorf("%d stalls after the last one", n)
	}
}
