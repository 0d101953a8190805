package bench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

func TestOptionErrorsNameTheirFlags(t *testing.T) {
	good := func() Options { return Options{Source: "postgres://user@host/db", Scenario: "latency"} }
	o := good()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	for flag, spoil := range map[string]func(*Options){
		"--source is missing":          func(o *Options) { o.Source = "" },
		"--source must be postgres://": func(o *Options) { o.Source = "sqlite:x.db" },
		`--scenario is "speed"`:        func(o *Options) { o.Scenario = "speed" },
		"--rate is -1":                 func(o *Options) { o.Rate = -1 },
		"--rows is 100000001":          func(o *Options) { o.Rows = maxRows + 1 },
		"--groups is -1":               func(o *Options) { o.Groups = -1 },
		"--size is 39":                 func(o *Options) { o.Size = minSize - 1 },
		"--clients is 101":             func(o *Options) { o.Clients = maxClients + 1 },
		"--repeat is -1":               func(o *Options) { o.Repeat = -1 },
		"--senders is 1001":            func(o *Options) { o.Senders = maxSenders + 1 },
		"--batch is 1001":              func(o *Options) { o.Batch = 1001 },
		"--duration is -1s":            func(o *Options) { o.Duration = -time.Second },
		"--delay is 2h0m0s":            func(o *Options) { o.Delay = 2 * time.Hour },
		`--claims is "never", must be`: func(o *Options) { o.Claims = "never" },
		`--against is "ceiling", must be one of claims: on, floor, floor without claims`: func(o *Options) { o.Against = []string{"ceiling"} },
		`--against is "floor", but idle has no other side`:                               func(o *Options) { o.Scenario, o.Against = "idle", []string{"floor"} },
		"--against and --compare":                 func(o *Options) { o.Against, o.Compare = []string{"floor"}, Files{"a", "b"} },
		"--peer PROGRAM and --scenario peer need": func(o *Options) { o.Scenario = "peer" },
		"--claims and --compare":                  func(o *Options) { o.Claims, o.Compare = "off", Files{"a", "b"} },
		"--senders and --compare":                 func(o *Options) { o.Senders, o.Compare = 5, Files{"a", "b"} },
		"--batch and --compare":                   func(o *Options) { o.Batch, o.Compare = 5, Files{"a", "b"} },
		`--layout is "postbox", must be`:          func(o *Options) { o.Layout = "postbox" },
	} {
		o := good()
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), flag) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %v", flag, err)
		}
	}
}

func TestEachScenarioHasItsOwnDefaults(t *testing.T) {
	slow := Options{Scenario: "slow-receiver"}.withDefaults(&findScenario("slow-receiver").defaults)
	if slow.Batch != 1 || slow.Senders != 64 || slow.Delay != 20*time.Millisecond || slow.Repeat != 5 || slow.Layout != layoutWords {
		t.Errorf("slow-receiver has %+v", slow)
	}
	drain := Options{Batch: 7}.withDefaults(&findScenario("drain").defaults)
	if drain.Batch != 7 || drain.Senders != 10 || drain.Rows != 200_000 || drain.Groups != 1000 {
		t.Errorf("drain has %+v", drain)
	}
}

func TestAgainstKeepsTheFirstSideAndSomeOthers(t *testing.T) {
	sc := findScenario("latency").beside([]string{floorSide})
	if len(sc.sides) != 2 || sc.sides[0].name != relaySide || sc.sides[1].name != floorSide {
		t.Errorf("the sides are %+v", sc.sides)
	}
	for _, c := range sc.compare {
		if c.against != floorSide {
			t.Errorf("%s is compared with %q", c.measure, c.against)
		}
	}
	if len(sc.compare) == 0 || len(findScenario("latency").sides) != 4 {
		t.Errorf("%d measures are compared, and the scenario has %d sides", len(sc.compare), len(findScenario("latency").sides))
	}
	if alone := findScenario("blocked-group").beside([]string{withoutSide}); len(alone.compare) != 3 {
		t.Errorf("blocked-group compares %+v, want the measure without another side too", alone.compare)
	}
}

// TestRelayIsNotMeasuredBesideItself: with claims on, there is no other side with claims on.
func TestRelayIsNotMeasuredBesideItself(t *testing.T) {
	sc := findScenario("drain")
	for claims, want := range map[string]bool{"on": false, "late": true, "off": true} {
		o := Options{Claims: claims}
		if got := slices.Contains(o.others(sc), claimsOnSide); got != want {
			t.Errorf("claims %s: a side with claims on %v, want %v", claims, got, want)
		}
	}
	asked := Options{Claims: "on", Against: []string{claimsOnSide}}
	if got := asked.others(sc); !slices.Equal(got, asked.Against) {
		t.Errorf("the other sides are %q, want the one that was asked for", got)
	}
}

func TestURLWithDatabase(t *testing.T) {
	for source, want := range map[string]string{
		"postgres://me@host/shop?sslmode=disable": "postgres://me@host/new?sslmode=disable",
		"mongodb://a:1,b:2/?replicaSet=rs0":       "mongodb://a:1,b:2/new?replicaSet=rs0",
		"mongodb://a,b/shop?replicaSet=rs0":       "mongodb://a,b/new?replicaSet=rs0",
		"mongodb://me:p@a/shop?tls=true":          "mongodb://me:p@a/new?tls=true&authSource=shop", // the database of the user's credentials
		"mongodb+srv://me:p@a/shop":               "mongodb+srv://me:p@a/new?authSource=shop",
		"mongodb://me:p@a/?authSource=admin":      "mongodb://me:p@a/new?authSource=admin",
		"mongodb://a:1":                           "mongodb://a:1/new",
	} {
		if got, err := demodb.InDatabase(source, "new"); err != nil || got != want {
			t.Errorf("%s becomes %s, %v; want %s", source, got, err, want)
		}
	}
}
