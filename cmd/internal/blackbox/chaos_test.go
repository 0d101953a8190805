package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// chaos is a run of faults from a seed.
type chaos struct {
	*workload
	*scene
	host   string
	server ownServer
	frozen freezer
	to     *chaosReceiver
	copies *copies
	relays []*chaosRelay

	windows []faultWindow
	report  *chaosReport
	ticks   int
}

// Variables of a run. SEED 0 draws one.
const (
	seedVariable    = "SLUICEBOX_TEST_SEED"
	minutesVariable = "SLUICEBOX_TEST_MINUTES"
	rateVariable    = "SLUICEBOX_TEST_RATE"
	reportVariable  = "SLUICEBOX_TEST_REPORT"
	onlyVariable    = "SLUICEBOX_TEST_FAULTS" // a list of kinds: only these
)

// chaosKinds are the kinds of faults that apply to a host. brief selects the short ones that every
// run of the tests has.
func chaosKinds(host string, brief bool) (kinds []chaosKind) {
	system := slices.Concat(relayKinds(), networkKinds(), databaseKinds(), grantKinds(), mongoKinds())
	for i := range system {
		system[i].family = "system" // while one of them is down, another cannot begin
	}
	rest := slices.Concat(receiverKinds(), brokerKinds(), dataKinds(), operatorKinds())
	for i := range rest {
		rest[i].family = strings.Fields(rest[i].name)[0]
	}
	for _, k := range slices.Concat(system, rest) {
		if k.on != nil && !k.on(host) {
			continue
		}
		if brief {
			if !slices.Contains(briefKinds(), k.name) {
				continue
			}
			k.most = min(k.most, 500*time.Millisecond)
			k.least = min(k.least, k.most)
		}
		kinds = append(kinds, k)
	}
	return kinds
}

func briefKinds() []string {
	return []string{
		"relay killed", "relay restarted", "network reset", "receiver answers 503 at times", "receiver loses acknowledgements",
		"database crashes", "slot dropped", "table locked", "poison rows", "transactions rolled back",
	}
}

// Two relays, a load, and faults from a fixed seed: nothing is lost, out of order or falsely COMPLETED,
// rows that arrive again had arrived at a fault, and everything is drained within a minute of the
// last fault's end. A run with another seed, or a longer one:
//
//	make faults SEED=4711 MINUTES=10 DB=pg15
func TestFaultsFromSeed(t *testing.T) {
	t.Parallel()
	if os.Getenv(minutesVariable) != "" {
		t.Skip("TestFaults runs")
	}
	aVersion(t, func(t *testing.T, version int) {
		runChaos(t, postgresHost(version), chaosPlan{seed: 1, rate: 200, brief: true, length: 20 * time.Second})
	})
}

// Faults from a seed for some minutes.
func TestFaults(t *testing.T) {
	minutes, err := strconv.ParseFloat(os.Getenv(minutesVariable), 64)
	if err != nil {
		t.Skip("set " + minutesVariable)
	}
	seed, _ := strconv.ParseUint(os.Getenv(seedVariable), 10, 64)
	if seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	rate, err := strconv.Atoi(os.Getenv(rateVariable))
	if err != nil {
		rate = 500
	}
	plan := chaosPlan{seed: seed, rate: rate, length: time.Duration(minutes * float64(time.Minute))}
	for _, h := range servers.Chosen(append(hosts(), mongoHost())) {
		t.Run(h.name, func(t *testing.T) { runChaos(t, h, plan) })
	}
}

// chaosPlan is what decides a run.
type chaosPlan struct {
	seed   uint64
	rate   int // rows per second
	length time.Duration
	brief  bool
}

// stepsOfPhase is how many faults come before all of them end and everything must be drained.
const stepsOfPhase = 10

func runChaos(t *testing.T, h host, plan chaosPlan) {
	t.Helper()
	kinds := chaosKinds(h.name, plan.brief)
	if only := os.Getenv(onlyVariable); only != "" && !plan.brief {
		kinds = slices.DeleteFunc(kinds, func(k chaosKind) bool { return !slices.Contains(strings.Split(only, ","), k.name) })
	}
	steps := chaosSchedule(plan.seed, kinds, plan.length)
	if plan.brief {
		steps = briefSchedule(plan.seed, kinds)
	}
	command := fmt.Sprintf("make faults SEED=%d MINUTES=%g DB=%s", plan.seed, plan.length.Minutes(), h.name)
	if plan.brief {
		command = "go test -run TestFaultsFromSeed ./cmd/internal/blackbox"
	}
	t.Logf("%d faults; %s", len(steps), command)
	c := newChaos(t, h, plan)
	c.report.command = command
	began := time.Now()
	t.Cleanup(func() {
		c.report.lasted = time.Since(began)
		t.Log("\n" + c.report.markdown())
		if t.Failed() {
			t.Logf("again: %s", command)
		}
	})
	c.start(plan.seed)
	t.Cleanup(c.stop)
	c.sleep(calm(plan))
	for i, step := range steps {
		c.run(step, kinds)
		if (i+1)%stepsOfPhase == 0 || i == len(steps)-1 {
			c.drain(i == len(steps)-1)
			c.sleep(calm(plan))
		}
	}
	for _, r := range c.relays {
		expectStop(t, r.relay)
	}
	if file := os.Getenv(reportVariable); file != "" && !plan.brief && !t.Failed() {
		c.report.lasted = time.Since(began)
		if err := c.report.save(file); err != nil {
			t.Error(err)
		}
	}
}

// calm is a time without a fault, in which no row may arrive twice.
func calm(plan chaosPlan) time.Duration {
	if plan.brief {
		return time.Second
	}
	return 2 * inFlight
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

func newChaos(t *testing.T, h host, plan chaosPlan) *chaos {
	t.Helper()
	s, server, store := chaosScene(t, h)
	w := &workload{truth: newTruth(), store: store, rate: plan.rate}
	c := &chaos{
		workload: w, scene: s, host: h.name, server: server, frozen: freezerOf(server), to: &chaosReceiver{truth: w.truth},
		report: &chaosReport{host: h.name, seed: plan.seed, rate: plan.rate, kinds: map[string]*kindReport{}, retained: -1},
	}
	s.to.Script(func(req *sinktest.Request) sinktest.Answer { return c.to.answer(req) })
	c.copies, c.copied = c.newCopies(plan.brief), true
	account := chaosAccount(s)
	s.config = fmt.Sprintf(chaosConfig, nameFor(s.database), account, s.to.URL(), c.copies.sink)
	for range 2 {
		c.relays = append(c.relays, newChaosRelay(t, s.config, account))
	}
	within(t, testTimeout, func() string {
		if c.leader().isLeader() {
			return ""
		}
		return "no relay leads"
	})
	return c
}

// chaosScene starts a server with the tables. Of a MongoDB, a scene has no conn, and an empty kind.
func chaosScene(t *testing.T, h host) (*scene, ownServer, chaosStore) {
	t.Helper()
	if h.kind == nil {
		return newMongoChaos(t)
	}
	database, server := h.start(t, nil)
	s := sceneIn(t, h, database, "")
	return s, server, sqlChaos{s.conn}
}

func freezerOf(server ownServer) freezer {
	if set, isSet := server.(*servers.MongoSet); isSet {
		return set.Members[0]
	}
	return server.(freezer)
}

// sleep lets the run go on for a while: it tends the relays and watches their size.
func (c *chaos) sleep(d time.Duration) {
	c.t.Helper()
	end := time.Now().Add(d)
	for {
		c.tick()
		left := time.Until(end)
		if left <= 0 {
			return
		}
		time.Sleep(min(left, 50*time.Millisecond))
	}
}

func (c *chaos) tick() {
	c.t.Helper()
	for _, r := range c.relays {
		r.tend(c.t)
	}
	if err := c.errs.Load(); err != nil {
		c.t.Fatalf("a writer: %v", *err)
	}
	if c.ticks++; c.ticks%40 == 0 {
		for _, r := range c.relays {
			r.weigh()
		}
		c.measureLog()
	}
}

// measureLog reads how much log the relays' slot retains.
func (c *chaos) measureLog() {
	if !c.kind.postgres {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the database may be frozen
	defer cancel()
	var n int64
	if c.conn.QueryRowContext(ctx, "SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0)::bigint FROM pg_replication_slots").Scan(&n) == nil {
		c.report.retained = max(c.report.retained, n)
	}
}

// usualLag is the age of the oldest row that counts as recovered.
const usualLag = 500 * time.Millisecond

// mostRecovery is the time in which everything must be as before a fault.
const mostRecovery = time.Minute

// run injects the faults of a step, ends them, and waits until the rows arrive as before.
func (c *chaos) run(step chaosStep, kinds []chaosKind) {
	c.t.Helper()
	c.sleep(step.Pause)
	began := time.Now()
	var heals []func()
	// Rows and operators need the database, so their faults end last.
	of := slices.DeleteFunc(slices.Clone(kinds), func(k chaosKind) bool { return !slices.Contains(step.Kinds, k.name) })
	for i, k := range of {
		heals = append(heals, k.inject(c, rand.New(rand.NewPCG(step.Salt, uint64(i)))))
	}
	c.sleep(step.Lasts)
	for _, heal := range heals {
		heal()
	}
	healed := time.Now()
	took := c.recovered()
	name := strings.Join(step.Kinds, " and also ")
	c.windows = append(c.windows, faultWindow{[]string{name}, began, healed.Add(took)})
	c.report.faults += len(step.Kinds)
	for _, name := range step.Kinds {
		k := c.report.kind(name)
		k.recovered = append(k.recovered, took)
	}
	c.t.Logf("%s  %s: recovered after %s", began.Format(time.TimeOnly), step, took.Round(10*time.Millisecond))
}

// recovered waits until a row arrives that was committed after the fault's end, and none that could arrive
// is older than usual.
func (c *chaos) recovered() time.Duration {
	c.t.Helper()
	began := time.Now()
	for {
		lag, id := c.lag()
		took := time.Since(began)
		switch {
		case lag < usualLag && c.fresh(began):
			return took
		case took > mostRecovery:
			c.t.Errorf("row %s has not arrived %s after the fault's end, %s after its commit", id, took, lag)
			return took
		}
		c.sleep(20 * time.Millisecond)
	}
}

// drain stops the writers, expects that every row is settled within a minute, and judges.
func (c *chaos) drain(last bool) {
	c.t.Helper()
	c.pause()
	began := time.Now()
	var states map[string]string
	for {
		states = c.states()
		open, one := 0, ""
		for _, r := range c.order {
			if s := states[r.id]; s != "COMPLETED" && s != "FAILED" {
				open, one = open+1, r.id
			}
		}
		if open == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			c.t.Errorf("%d rows are open a minute after the last fault ended, for example %s, %s", open, one, states[one])
			break
		}
		c.sleep(100 * time.Millisecond)
	}
	c.report.drained = max(c.report.drained, time.Since(began))
	c.readCopies()
	v := c.judge(states, c.windows)
	c.report.add(v)
	c.report.replayed = c.replayed
	if wrongs := v.wrongs(); len(wrongs) > 0 {
		c.t.Errorf("%d invariants are broken:\n%s", len(wrongs), strings.Join(wrongs, "\n"))
	}
	c.report.relays = nil
	for i, r := range c.relays {
		r.weigh()
		c.report.relays = append(c.report.relays, fmt.Sprintf("%d: %d starts, %.0f MiB RSS at the peak, %d goroutines and %d descriptors at first, %d and %d at last",
			i+1, r.starts, float64(r.peak)/(1<<20), r.firstTasks, r.firstOpen, r.lastTasks, r.lastOpen))
	}
	if !last {
		c.resume()
	}
}
