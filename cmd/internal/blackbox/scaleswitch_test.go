package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// variant returns the configuration of a process whose rows arrive from a path.
func (s *scaleFleet) variant(path string, change ...string) string {
	text := strings.Replace(s.config, `"}}`+"\n", path+`"}}`+"\n", 1)
	return strings.NewReplacer(change...).Replace(text)
}

// section returns the line of the configuration that begins with a key.
func (s *scaleFleet) section(key string) string {
	for line := range strings.Lines(s.config) {
		if strings.HasPrefix(line, key+":") {
			return line
		}
	}
	s.t.Fatalf("the configuration has no %s", key)
	return ""
}

// forbid lets nothing arrive from a path any more, "" for none.
func (s *scaleFleet) forbid(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.no = path
}

// arrive waits until new rows arrive from a path.
func (s *scaleFleet) arrive(path string) {
	s.t.Helper()
	first := -1
	within(s.t, testTimeout, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if first < 0 {
			first = s.from[path]
		}
		if s.from[path] < first+scaleGroups {
			return fmt.Sprintf("%d rows arrived from %s", s.from[path]-first, path)
		}
		return ""
	})
}

// Processes with scale, without it, and with more partitions run beside each other. Only one kind sends, the
// others stand by, and no row is lost or overtaken when the sending kind ends.
func TestScaleSwitch(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, s *scaleFleet) {
		s.pause = 200 * time.Millisecond // each kind sends the rows of the time in which none did
		few := strings.NewReplacer(fmt.Sprint("partitions: ", scalePartitions), "partitions: 2", fmt.Sprint("session-timeout: ", scaleSession), "session-timeout: 6s")
		s.config = few.Replace(s.config)
		scale := s.section("scale")
		has := func(role string) string { return strings.Replace(scale, "engine:", "roles: ["+role+"], engine:", 1) }
		alone := s.variant("/alone", scale, "")
		capture, dispatch := s.variant("/shards", scale, has("capture")), s.variant("/shards", scale, has("dispatch"))
		resized := s.variant("/resized", "topic: shop", "topic: larger", "partitions: 2", "partitions: 3")
		initTopic(t, resized)
		// replaced kills c, which captures, and stops d, which dispatches. Until then the next kind stands by.
		replaced := func(c, d, next *relay, path string) {
			next.waitFor("standing by")
			c.kill()
			next.waitFor("with another configuration of scale")
			s.forbid("")
			expectStop(t, d)
			s.forbid("/shards")
			s.arrive(path)
		}

		s.forbid("/alone")
		c, d := start(t, capture), start(t, dispatch)
		d.waitFor("topic has partitions that stay unused") // the topic has more than 2
		stop := s.write()
		s.arrive("/shards")
		one := start(t, alone)
		replaced(c, d, one, "/alone")

		c, d = start(t, capture), start(t, dispatch)
		c.waitFor("standing by")
		d.waitFor("a relay without scale")
		s.arrive("/alone")
		s.forbid("")
		expectStop(t, one)
		s.forbid("/alone")
		s.arrive("/shards")

		s.forbid("/resized")
		larger := start(t, resized)
		replaced(c, d, larger, "/resized")
		rows := stop()
		s.settled(rows)
		if most := rows / 5; s.repeats > most {
			t.Errorf("%d rows of %d arrived again, want %d at most", s.repeats, rows, most)
		}
		expectStop(t, larger)
	})
}
