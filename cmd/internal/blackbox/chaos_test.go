package blackbox

import (
	"cmp"
	"context"
	"errors"
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
	copies []*destination

	toReceiver *servers.Proxy
	deletes    bool // events are deleted after chaosRetention
	disk       *servers.Disk
	effects    *effects
	relays     []*chaosRelay

	windows []faultWindow
	report  *chaosReport
	machine *machine
	sampled *samples
}

// Variables of a run. SEED 0 draws one.
const (
	seedVariable    = "SLUICEBOX_TEST_SEED"
	minutesVariable = "SLUICEBOX_TEST_MINUTES"
	rateVariable    = "SLUICEBOX_TEST_RATE"
	reportVariable  = "SLUICEBOX_TEST_REPORT"
	everyVariable   = "SLUICEBOX_TEST_EVERY"  // from one fault's begin to the next one's
	onlyVariable    = "SLUICEBOX_TEST_FAULTS" // a list of kinds: only these. A+B: both at once
)

// chaosKinds are the kinds of faults that apply to a host. brief selects the short ones that every
// run of the tests has.
func chaosKinds(host string, brief bool) (kinds []chaosKind) {
	system := slices.Concat(relayKinds(), networkKinds(), databaseKinds(), diskKinds(), grantKinds(), mongoKinds(), sqliteKinds())
	for i := range system {
		system[i].family = "system" // while one of them is down, another cannot begin
	}
	rest := slices.Concat(receiverKinds(), answerKinds(), brokerKinds(), dataKinds(), clockKinds(), operatorKinds())
	for i := range rest {
		rest[i].family = cmp.Or(rest[i].family, strings.Fields(rest[i].name)[0])
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
	if text := os.Getenv(everyVariable); text != "" {
		if plan.every, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv(onlyVariable); text != "" {
		plan.only = strings.Split(text, ",")
	}
	for _, h := range servers.Chosen(append(hosts(), mongoHost(), host{name: sqliteName})) {
		t.Run(h.name, func(t *testing.T) { runChaos(t, h, plan) })
	}
}

// chaosPlan is what decides a run.
type chaosPlan struct {
	seed   uint64
	rate   int // rows per second
	length time.Duration
	every  time.Duration // from one fault's begin to the next one's; 0: random pauses
	only   []string      // kinds, or pairs with + between them; none: all
	brief  bool
}

// title is the heading of a run's report.
func (p chaosPlan) title(host string) string {
	if p.every > 0 {
		return fmt.Sprintf("%s, a fault every %s", host, p.every)
	}
	return host
}

// command starts a run again.
func (p chaosPlan) command(host string) string {
	if p.brief {
		return "go test -run TestFaultsFromSeed ./cmd/internal/blackbox"
	}
	text := fmt.Sprintf("make faults SEED=%d MINUTES=%g DB=%s RATE=%d", p.seed, p.length.Minutes(), host, p.rate)
	if p.every > 0 {
		text += fmt.Sprintf(" EVERY=%s", p.every)
	}
	if brokers := os.Getenv(brokersVariable); brokers != "" {
		text += " BROKERS=" + brokers
	}
	if p.only != nil {
		text += fmt.Sprintf(" KINDS=%q", strings.Join(p.only, ","))
	}
	return text
}

// stepsOfPhase is how many faults come before all of them end and everything must be drained.
const stepsOfPhase = 10

func runChaos(t *testing.T, h host, plan chaosPlan) {
	t.Helper()
	kinds := plan.able(t, chaosKinds(h.name, plan.brief))
	steps := plan.steps(kinds)
	t.Logf("%d faults; %s", len(steps), plan.command(h.name))
	m := &machine{}
	t.Cleanup(m.watch()) // after all others
	c := newChaos(t, h, plan, hasKind(steps, diskFull))
	c.machine = m
	t.Cleanup(c.conclude(plan)) // also of a run that ended early
	c.start(plan.seed)
	t.Cleanup(c.stop)
	stop := c.sample(plan.length)
	t.Cleanup(stop)
	c.sleep(calm(plan))
	next := time.Now()
	for i, step := range steps {
		if plan.every > 0 {
			step.Pause = max(time.Second, time.Until(next))
			next = time.Now().Add(step.Pause + plan.every)
		}
		c.run(step, kinds)
		if (i+1)%stepsOfPhase == 0 || i == len(steps)-1 {
			c.drain(i == len(steps)-1)
			c.sleep(calm(plan))
		}
	}
	for _, r := range c.relays {
		expectStop(t, r.relay)
	}
	if !plan.brief {
		c.expectEffects(kinds)
	}
	c.report.complete = true
}

// conclude returns what logs and saves the report, however the run ends.
func (c *chaos) conclude(plan chaosPlan) func() {
	began := time.Now()
	c.report.command = plan.command(c.host)
	return func() {
		c.report.lasted = time.Since(began)
		c.report.machine = c.machine.said(began, c.machine.from)
		c.report.posted = c.posts.String()
		for name, k := range c.report.kinds {
			k.effects = c.effects.text(name)
		}
		if c.sampled != nil {
			c.report.sizes = c.sampled.texts()
		}
		c.report.failed = c.t.Failed()
		c.t.Log("\n" + c.report.markdown())
		if c.t.Failed() {
			c.t.Logf("again: %s", c.report.command)
		}
		file := os.Getenv(reportVariable)
		if file == "" || plan.brief {
			return
		}
		if c.sampled != nil {
			picture, err := c.sampled.savePicture(file, c.report.title)
			if err != nil {
				c.t.Error(err)
			}
			c.report.picture = picture
		}
		if err := c.report.save(file); err != nil {
			c.t.Error(err)
		}
	}
}

// wrong notes a broken invariant. The run goes on.
func (c *chaos) wrong(format string, args ...any) {
	c.t.Helper()
	text := fmt.Sprintf(format, args...)
	c.t.Errorf("%s", text)
	first, _, _ := strings.Cut(text, "\n")
	c.report.wrongs = append(c.report.wrongs, first)
}

// calm is a time without a fault, in which no row may arrive twice.
func calm(plan chaosPlan) time.Duration {
	if plan.brief {
		return time.Second
	}
	return 2 * inFlight
}

func newChaos(t *testing.T, h host, plan chaosPlan, onDisk bool) *chaos {
	t.Helper()
	s, server, store, disk := chaosScene(t, h, onDisk)
	w := &workload{truth: newTruth(), store: store, rate: plan.rate}
	acted := &effects{n: map[string]int{}}
	c := &chaos{
		workload: w, scene: s, host: h.name, server: server, frozen: freezerOf(server), to: &chaosReceiver{truth: w.truth, effects: acted},
		disk: disk, effects: acted,
		report: &chaosReport{title: plan.title(h.name), rate: plan.rate, kinds: map[string]*kindReport{}},
	}
	s.to.Script(func(req *sinktest.Request) sinktest.Answer { return c.to.answer(req) })
	c.newCopies(plan.brief)
	c.toReceiver, c.deletes = servers.NewProxy(t, s.to.URL()), plan.deletes()
	sinkKeys, outboxKeys := plan.options()
	account := chaosAccount(s)
	s.config = fmt.Sprintf(chaosConfig, nameFor(s.database), account, outboxKeys, c.routes(), c.toReceiver.URL(s.to.URL()), sinkKeys, c.sinks())
	for range 2 {
		c.relays = append(c.relays, newChaosRelay(t, s.config, account))
	}
	within(t, testTimeout, func() string {
		if c.leader().isLeader() {
			return ""
		}
		return "no relay leads"
	})
	c.ingests = func(n int) string { return c.relays[n%len(c.relays)].ingest }
	return c
}

// chaosScene starts a server with the tables. Of a MongoDB, a scene has no conn, and an empty kind. SQLite
// has no server.
func chaosScene(t *testing.T, h host, onDisk bool) (*scene, ownServer, chaosStore, *servers.Disk) {
	t.Helper()
	if h.name == sqliteName {
		s, store := newSQLiteChaos(t)
		return s, nil, store, nil
	}
	if h.kind == nil {
		return newMongoChaos(t, onDisk)
	}
	database, server := h.start(t, nil)
	var disk *servers.Disk
	if onDisk {
		disk = server.(interface{ OnDisk(int64) *servers.Disk }).OnDisk(chaosDisk)
	}
	s := sceneIn(t, h, database, "")
	return s, server, sqlChaos{conn: s.conn}, disk
}

func freezerOf(server ownServer) freezer {
	if set, isSet := server.(*servers.MongoSet); isSet {
		return set.Members[0]
	}
	frozen, _ := server.(freezer)
	return frozen
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
	if err := c.errs.Swap(nil); err != nil {
		c.wrong("a writer: %v", *err)
	}
}

// retainedLog is how many bytes of log the database keeps for the relays.
func (c *chaos) retainedLog() (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the database may be frozen
	defer cancel()
	switch {
	case onPostgres(c.host):
		const retained = "SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0)::bigint FROM pg_replication_slots"
		return n, c.conn.QueryRowContext(ctx, retained).Scan(&n)
	case c.host == sqliteName:
		return walSize(c.database)
	case onMySQL(c.host):
		return binlogSize(ctx, c.conn)
	}
	return 0, errors.ErrUnsupported
}

// usualLag is the age of the oldest row that counts as recovered.
const usualLag = 500 * time.Millisecond

// mostRecovery is the time in which everything must be as before a fault.
const mostRecovery = time.Minute

// slowRecovery is the recovery at which the log says how the machine was.
const slowRecovery = 2 * time.Second

// verySlowRecovery is the one at which it has what the relays said.
const verySlowRecovery = 5 * time.Second

// run injects the faults of a step, ends them, and waits until the rows arrive as before.
func (c *chaos) run(step chaosStep, kinds []chaosKind) {
	c.t.Helper()
	c.sleep(step.Pause)
	began, then := time.Now(), readPressure()
	var heals []func()
	before := c.effects.all()
	// Rows and operators need the database, so their faults end last.
	of := slices.DeleteFunc(slices.Clone(kinds), func(k chaosKind) bool { return !slices.Contains(step.Kinds, k.name) })
	for i, k := range of {
		heals = append(heals, k.inject(c, rand.New(rand.NewPCG(step.Salt, uint64(i)))))
	}
	c.sleep(step.Lasts)
	c.awaitEffects(of, before)
	for _, heal := range heals {
		heal()
	}
	healed := time.Now()
	took := c.recovered()
	c.report.recovered = append(c.report.recovered, took)
	said := ""
	if took > slowRecovery {
		said = " (" + c.machine.said(began, then) + ")"
	}
	name := strings.Join(step.Kinds, " and also ")
	c.windows = append(c.windows, faultWindow{[]string{name}, began, healed.Add(took)})
	c.report.faults += len(step.Kinds)
	for _, name := range step.Kinds {
		k := c.report.kind(name)
		k.recovered = append(k.recovered, took)
	}
	if took > verySlowRecovery {
		c.logSince(began)
	}
	c.t.Logf("%s  %s: recovered after %s%s", began.Format(time.TimeOnly), step, took.Round(10*time.Millisecond), said)
}

// logSince logs the lines of both relays since a time, and the stalls of the machine.
func (c *chaos) logSince(at time.Time) {
	c.t.Helper()
	for i, r := range c.relays {
		c.t.Logf("relay %d said since %s:\n%s", i+1, at.Format(time.TimeOnly), r.saidSince(at))
	}
	c.machine.mu.Lock()
	defer c.machine.mu.Unlock()
	for _, s := range c.machine.stalls {
		if s.at.After(at) {
			c.t.Logf("the machine stood still for %s until %s", s.long.Round(time.Millisecond), s.at.Format(time.StampMilli))
		}
	}
}

// recovered waits until a row arrives that was committed after the fault's end, and none that could arrive
// is older than usual.
func (c *chaos) recovered() time.Duration {
	c.t.Helper()
	began, then := time.Now(), readPressure()
	for {
		lag, id := c.lag()
		took := time.Since(began)
		switch {
		case lag < usualLag && c.fresh(began):
			return took
		case took > mostRecovery:
			c.wrong("row %s has not arrived %s after the fault's end, %s after its commit (the machine: %s)",
				id, took.Round(time.Second), lag.Round(time.Second), c.machine.said(began, then))
			c.overdue() // so that they do not fail the next fault too
			return took
		}
		c.sleep(20 * time.Millisecond)
	}
}

// drain stops the writers, expects that every row is settled within a minute, and judges.
func (c *chaos) drain(last bool) {
	c.t.Helper()
	c.pause()
	began, then := time.Now(), readPressure()
	var states map[string]string
	deleted := 0
	for {
		states = c.states()
		deleted = c.deleted(states)
		open, one := 0, ""
		for _, r := range c.order {
			if s := states[r.id]; s != "COMPLETED" && s != "FAILED" {
				open, one = open+1, r.id
			}
		}
		if open == 0 {
			break
		}
		if time.Since(began) > mostRecovery {
			c.wrong("%d rows are open a minute after the last fault ended, for example %s, %s (the machine: %s)", open, one, states[one], c.machine.said(began, then))
			break
		}
		c.sleep(100 * time.Millisecond)
	}
	c.report.drained = max(c.report.drained, time.Since(began))
	c.report.deleted += deleted
	c.readCopies(states)
	v := c.judge(states, c.windows)
	c.report.add(v)
	c.report.replayed = c.replayed
	if wrongs := v.wrongs(); len(wrongs) > 0 {
		c.wrong("%d invariants are broken, such as %s\n%s", len(wrongs), wrongs[0], strings.Join(wrongs, "\n"))
	}
	if len(v.unexplained) > 0 {
		c.logSince(v.since.Add(-verySlowRecovery))
	}
	c.retire(c.windows)
	c.report.relays = nil
	for i, r := range c.relays {
		c.report.relays = append(c.report.relays, fmt.Sprintf("%d: %d starts", i+1, r.starts))
	}
	if !last {
		c.resume()
	}
}
