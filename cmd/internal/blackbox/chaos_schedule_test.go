package blackbox

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// chaosKind is a kind of fault.
type chaosKind struct {
	name, family string
	least, most  time.Duration // between begin and end
	// counted kinds note each time they act. The others act when they begin, or fail the test.
	counted bool
	needs   need
	// on reports whether the kind applies to a host; nil: to all.
	on func(name string) bool
	// inject begins the fault and returns what ends it.
	inject func(c *chaos, r *rand.Rand) (heal func())
}

// need is what a kind needs of a run.
type need int

const (
	needItems need = 1 + iota // a receiver with a result for each row
	needDisk                  // a database on a small disk
)

// withoutNeed removes the kinds that need something.
func withoutNeed(kinds []chaosKind, missing need) []chaosKind {
	return slices.DeleteFunc(kinds, func(k chaosKind) bool { return k.needs == missing })
}

// chaosStep is one fault of a schedule, or two at once.
type chaosStep struct {
	Kinds []string
	Pause time.Duration // before it
	Lasts time.Duration
	Salt  uint64 // decides what the fault itself leaves to chance
}

func (s chaosStep) String() string {
	return fmt.Sprintf("%s for %s", strings.Join(s.Kinds, " and "), s.Lasts)
}

// chaosSchedule draws faults from a seed, whose times add up to a length. Equal arguments give
// equal schedules. Each kind comes once before any comes again, and every fifth fault has another
// family's beside it.
func chaosSchedule(seed uint64, kinds []chaosKind, length time.Duration) (steps []chaosStep) {
	r := rand.New(rand.NewPCG(seed, 1))
	var deck []chaosKind
	draw := func(but string) (chaosKind, bool) {
		if len(deck) == 0 {
			deck = slices.Clone(kinds)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		i := slices.IndexFunc(deck, func(k chaosKind) bool { return k.family != but })
		if i < 0 {
			return chaosKind{}, false
		}
		k := deck[i]
		deck = slices.Delete(deck, i, i+1)
		return k, true
	}
	for spent := time.Duration(0); spent < length && len(kinds) > 0; {
		k, _ := draw("")
		s := chaosStep{
			Kinds: []string{k.name}, Pause: time.Second + time.Duration(r.Int64N(int64(2*time.Second))),
			Lasts: k.least + time.Duration(r.Int64N(int64(k.most-k.least)+1)), Salt: r.Uint64(),
		}
		if r.IntN(5) == 0 && len(deck) > 0 {
			if beside, found := draw(k.family); found {
				s.Kinds = append(s.Kinds, beside.name)
				s.Lasts = max(s.Lasts, beside.least)
			}
		}
		s.Pause, s.Lasts = s.Pause.Round(time.Millisecond), s.Lasts.Round(time.Millisecond)
		steps, spent = append(steps, s), spent+s.Pause+s.Lasts
	}
	return steps
}

// steps is the schedule of a plan.
func (p chaosPlan) steps(kinds []chaosKind) (steps []chaosStep) {
	switch {
	case p.brief:
		return briefSchedule(p.seed, kinds)
	case p.only == nil:
		return p.stretch(chaosSchedule(p.seed, kinds, p.length))
	}
	only := slices.DeleteFunc(slices.Clone(kinds), func(k chaosKind) bool { return !slices.Contains(p.only, k.name) })
	var pairs []chaosStep // each as often as the others
	for _, text := range p.only {
		if names := strings.Split(text, "+"); len(names) > 1 {
			pairs = append(pairs, chaosStep{Kinds: names})
		}
	}
	if len(pairs) == 0 {
		return p.stretch(chaosSchedule(p.seed, only, p.length))
	}
	for _, k := range only {
		pairs = append(pairs, chaosStep{Kinds: []string{k.name}})
	}
	steps = chaosSchedule(p.seed, kinds, p.length) // for its times
	for i := range steps {
		steps[i].Kinds = pairs[i%len(pairs)].Kinds
	}
	return p.stretch(steps)
}

// stretch ends a schedule where its length ends with one fault every so often.
func (p chaosPlan) stretch(steps []chaosStep) []chaosStep {
	spent := time.Duration(0)
	for i, s := range steps {
		if spent >= p.length {
			return steps[:i]
		}
		spent += max(p.every, s.Pause+s.Lasts)
	}
	return steps
}

// briefSchedule has each kind once, with short pauses.
func briefSchedule(seed uint64, kinds []chaosKind) (steps []chaosStep) {
	steps = chaosSchedule(seed, kinds, time.Minute)
	n := 0
	for i := range steps {
		steps[i].Pause /= 4
		if n += len(steps[i].Kinds); n >= len(kinds) {
			return steps[:i+1]
		}
	}
	return steps
}

// A fault every ten seconds gives six a minute, and pairs come as they were asked for.
func TestFaultPlan(t *testing.T) {
	t.Parallel()
	kinds := chaosKinds("pg15", false)
	p := chaosPlan{seed: 7, length: 10 * time.Minute, every: 20 * time.Second}
	if n := len(p.steps(kinds)); n != 30 {
		t.Errorf("a fault every 20 s for 10 minutes: got %d faults, want 30", n)
	}
	p.only = []string{"database crashes+receiver hangs", "relay killed"}
	for i, s := range p.steps(kinds) {
		if want := strings.Split(p.only[i%2], "+"); !slices.Equal(s.Kinds, want) {
			t.Errorf("step %d has %q, want %q", i, s.Kinds, want)
		}
	}
}

// An equal seed gives an equal schedule, another seed another one, and all kinds come.
func TestFaultSchedule(t *testing.T) {
	t.Parallel()
	kinds := chaosKinds("pg15", false)
	one, same, other := chaosSchedule(7, kinds, time.Hour), chaosSchedule(7, kinds, time.Hour), chaosSchedule(8, kinds, time.Hour)
	if !reflect.DeepEqual(one, same) || reflect.DeepEqual(one, other) {
		t.Error("the seed does not decide the schedule")
	}
	short := chaosSchedule(7, kinds, time.Minute)
	if len(short) == 0 || !reflect.DeepEqual(short, one[:len(short)]) {
		t.Error("a longer schedule does not begin with the shorter one")
	}
	seen, pairs := map[string]int{}, 0
	family := map[string]string{}
	for _, k := range kinds {
		family[k.name] = k.family
	}
	for _, s := range one {
		for _, name := range s.Kinds {
			seen[name]++
		}
		if len(s.Kinds) == 2 {
			pairs++
			if family[s.Kinds[0]] == family[s.Kinds[1]] {
				t.Errorf("%s: two faults of one family", s)
			}
		}
	}
	least, most := len(one), 0
	for _, k := range kinds {
		least, most = min(least, seen[k.name]), max(most, seen[k.name])
	}
	if least == 0 || most > least+2 || pairs == 0 {
		t.Errorf("each kind comes %d to %d times, with %d pairs", least, most, pairs)
	}
}
