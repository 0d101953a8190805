package record

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

const (
	modelPartitions  = 2
	modelRecordBytes = 300 // a row of many bytes has three parts
)

// model is a database's log, two feeders that may both believe that they lead, the partitions, and
// owners of each partition.
type model struct {
	log     *modelLog
	rows    []store.Item   // in commit order
	commits map[string]int // of a row: its place there

	epoch      store.Epoch // of the leader, in the database
	checkpoint int         // of the feeder, in the database: how many batches; -1 is none
	feeders    []*modelFeeder
	partitions [modelPartitions][]Record
	shards     [modelPartitions]*modelShard

	acked Acked // saved with the checkpoint

	markers    int  // of snapshots
	losesTails bool // Kafka does
	forgets    bool // a Leader has no acknowledged numbers
	lostTails  int  // that a shard noticed
	resizes    int
	noMarkers  bool // feeders write no Leader, and shards do not look at epochs
	repeated   int
	parts      int // of rows, that were read
	late       int // records of a former leader behind the Leader of the next
}

// modelLog is the database's log. After a loss there is another, whose positions begin again.
type modelLog struct{ batches []capture.Batch }

// modelFeeder holds records that Kafka has not stored: each partition takes the first of its own.
type modelFeeder struct {
	split   *Splitter
	log     *modelLog
	epoch   store.Epoch
	leading int  // partitions that do not have the Leader, and then the Gap
	loaded  bool // the checkpoint
	opened  bool // the log
	began   int  // batch of the log
	next    int
	pending [modelPartitions][]modelRecord
	batches map[int]int // records of a batch that are not stored
	acked   Acked
}

type modelRecord struct {
	Record
	batch int
}

// modelShard is a shard: its records in the database, and its owners. An owner that was replaced goes on
// until its claim is refused.
type modelShard struct {
	epoch   store.Epoch
	saved   *Place // nil: no checkpoint
	owners  []*modelOwner
	order   []string // first deliveries
	settled map[string]bool
}

type modelOwner struct {
	epoch  store.Epoch
	place  Cursor
	marker string // that a snapshot waits for
	view   int    // rows that were committed before the marker
}

func newModel(noMarkers bool) *model {
	m := &model{log: &modelLog{}, commits: map[string]int{}, noMarkers: noMarkers}
	for i := range m.shards {
		m.shards[i] = &modelShard{saved: &Place{}, settled: map[string]bool{}}
		m.own(i)
	}
	m.lead()
	return m
}

func comparePositions(a, b store.Position) int {
	x, _ := strconv.Atoi(string(a))
	y, _ := strconv.Atoi(string(b))
	return cmp.Compare(x, y)
}

// commit adds a transaction to the log, in parts, or a position without rows. Positions are numbers
// of batches, so the parts have none.
func (m *model) commit(parts [][]int) {
	for n, rows := range parts {
		b := capture.Batch{}
		for _, group := range rows {
			it := store.Item{Ref: store.Ref{ID: fmt.Sprintf("r%d", len(m.commits))}, Group: store.GroupOf(fmt.Sprint(group))}
			if len(m.commits)%4 == 0 {
				it.Attributes = store.Attributes{{Name: "header", Value: strings.Repeat("x", modelRecordBytes)}}
			}
			m.commits[it.ID] = len(m.commits)
			m.rows = append(m.rows, it)
			b.Items = append(b.Items, it)
		}
		if n == len(parts)-1 {
			b.Position = store.Position(strconv.Itoa(len(m.log.batches) + 1))
		}
		m.log.batches = append(m.log.batches, b)
	}
}

// lose replaces the log by an empty one, as a failover or a lost slot does. The leader's session ends
// with it, and clears the checkpoint.
func (m *model) lose() {
	m.log, m.checkpoint, m.acked = &modelLog{}, -1, Acked{}
	m.lead()
}

// elsewhere gives the topic another number of partitions for a while. The shards of these partitions are ended. The feeder of
// that time has stored all rows there, and saved its checkpoint behind them.
func (m *model) elsewhere() {
	m.epoch++
	m.acked = Acked{Epoch: m.epoch}
	for n := len(m.log.batches); m.checkpoint >= 0 && n > m.checkpoint; n-- {
		if m.log.batches[n-1].Position != "" {
			m.checkpoint = n
		}
	}
	m.resizes++
	m.lead()
	for p, s := range m.shards {
		s.saved = nil
		m.own(p)
	}
}

// loseTail removes the last records of a partition, as an unclean election does. The sequence numbers of
// the feeders that wrote do not fit then, and another leads.
func (m *model) loseTail(p, records int) {
	m.partitions[p] = m.partitions[p][:max(0, len(m.partitions[p])-records)]
	for _, f := range m.feeders {
		f.pending, f.leading = [modelPartitions][]modelRecord{}, modelPartitions
	}
	m.lead()
}

// lead makes a new feeder the leader. The former one does not know.
func (m *model) lead() {
	m.epoch++
	f := &modelFeeder{split: NewSplitter(m.epoch, modelPartitions, ""), log: m.log, epoch: m.epoch, batches: map[int]int{}}
	if !m.noMarkers { // else a part in the wrong place ends the run before an order is broken
		f.split.MaxBytes = modelRecordBytes
	}
	f.acked = Acked{m.epoch, make([]uint64, modelPartitions)}
	if m.feeders = append(m.feeders, f); len(m.feeders) > 2 {
		m.feeders = m.feeders[1:]
	}
}

// load loads the checkpoint, which may be a later feeder's, and begins every partition.
func (m *model) load(f *modelFeeder) {
	f.loaded, f.next = true, m.checkpoint
	acked := m.acked
	if m.forgets {
		acked = Acked{m.acked.Epoch, make([]uint64, modelPartitions)}
	}
	if !m.noMarkers {
		m.begin(f, func(to func(int, *Record) error) error { return f.split.Lead(acked, to) })
	}
}

// begin appends a record to every partition. The feeder waits for them.
func (m *model) begin(f *modelFeeder, all func(to func(int, *Record) error) error) {
	_ = all(func(p int, r *Record) error {
		f.pending[p] = append(f.pending[p], modelRecord{*r, -1})
		return nil
	})
	f.leading = modelPartitions
}

// open begins to read the log at the checkpoint. Without one it begins at its end, behind a Gap.
func (m *model) open(f *modelFeeder) {
	f.opened = true
	if f.next < 0 {
		f.next = len(f.log.batches)
		for f.next > 0 && f.log.batches[f.next-1].Position == "" {
			f.next--
		}
		m.begin(f, func(to func(int, *Record) error) error { return f.split.All(Gap, to) })
	}
	f.began = f.next
	f.split.Begin(store.Position(strconv.Itoa(f.next)))
}

// read lets a feeder read a batch. It leaves out some positions without rows, as sources do.
func (m *model) read(f *modelFeeder, skipIdle bool) {
	switch {
	case f.leading > 0:
		return
	case !f.loaded:
		m.load(f)
		return
	case f.opened:
	case f.log != m.log: // it cannot open the log that is gone
		return
	default: // only now
		m.open(f)
		return
	}
	if f.next == len(f.log.batches) {
		return
	}
	b, n := f.log.batches[f.next], f.next
	f.next++
	if skipIdle && len(b.Items) == 0 && len(b.Marks) == 0 {
		return
	}
	_ = f.split.Split(&b, func(p int, r *Record) error {
		f.pending[p] = append(f.pending[p], modelRecord{*r, n})
		f.batches[n]++
		return nil
	})
}

// store lets Kafka store the next record of a feeder in a partition.
func (m *model) store(f *modelFeeder, p int) {
	if len(f.pending[p]) == 0 {
		return
	}
	r := f.pending[p][0]
	f.pending[p] = f.pending[p][1:]
	f.acked.Numbers[p]++
	m.partitions[p] = append(m.partitions[p], r.Record)
	if f.epoch < m.epoch && r.Kind != Leader {
		m.late++
	}
	if r.Kind == Leader || r.Kind == Gap {
		f.leading--
		return
	}
	f.batches[r.batch]--
}

// save lets a feeder save its checkpoint, which the epoch guards.
func (m *model) save(f *modelFeeder) {
	if f.epoch != m.epoch || !f.opened || f.leading > 0 {
		return
	}
	m.acked = Acked{f.epoch, slices.Clone(f.acked.Numbers)}
	if m.checkpoint < 0 {
		m.checkpoint = f.began
		return
	}
	for n := m.checkpoint; n < f.next && f.batches[n] == 0; n++ {
		if f.log.batches[n].Position != "" {
			m.checkpoint = n + 1
		}
	}
}

// own gives a partition a new owner, at the saved place.
func (m *model) own(p int) {
	s := m.shards[p]
	s.epoch++
	o := &modelOwner{epoch: s.epoch}
	if s.owners = append(s.owners, o); len(s.owners) > 2 {
		s.owners = s.owners[1:]
	}
	if s.saved != nil {
		o.place = NewCursor(*s.saved)
		return
	}
	m.mark(p, o)
}

// mark begins a snapshot: a marker in the log, looked for behind the present end of the partition.
func (m *model) mark(p int, o *modelOwner) {
	o.place = NewCursor(Place{Offset: int64(len(m.partitions[p]))})
	if o.epoch == m.shards[p].epoch {
		m.shards[p].saved = nil
	}
	m.markers++
	o.marker, o.view = fmt.Sprintf("m%d", m.markers), len(m.rows)
	m.log.batches = append(m.log.batches, capture.Batch{Marks: []string{AddressMark(p, o.marker)}, Position: store.Position(strconv.Itoa(len(m.log.batches) + 1))})
}

// claim settles a row, unless it is settled or the owner is fenced.
func (m *model) claim(s *modelShard, o *modelOwner, id string) {
	switch {
	case o.epoch != s.epoch:
	case s.settled[id]:
		m.repeated++
	default:
		s.settled[id] = true
		s.order = append(s.order, id)
	}
}

// deliver lets an owner take the next record.
func (m *model) deliver(p int, o *modelOwner, save bool) error {
	s := m.shards[p]
	switch end := int64(len(m.partitions[p])); {
	case o.place.Offset == end:
		return nil
	case o.place.Offset > end:
		m.lostTails++
		m.mark(p, o)
		return nil
	}
	r := m.partitions[p][o.place.Offset]
	if r.Kind == Part {
		m.parts++
	}
	if o.marker != "" {
		m.seek(p, o, &r)
		return nil
	}
	if m.noMarkers {
		r.Epoch, r.Number = o.place.Epoch, o.place.Number
	}
	fresh, err := o.place.Take(&r, o.place.Offset, comparePositions)
	var gap *GapError
	switch {
	case errors.As(err, &gap) && (r.IsGap() || m.losesTails):
		if !r.IsGap() {
			m.lostTails++
		}
		m.mark(p, o)
		return nil
	case err != nil:
		return err
	case fresh && r.Kind == Row:
		m.claim(s, o, r.Item.ID)
	}
	if save && o.epoch == s.epoch {
		place := o.place.Whole
		s.saved = &place
	}
	return nil
}

// seek looks for the marker of a snapshot. Behind it the view is read: the rows that were committed
// before the marker, because the partition brings the later ones.
func (m *model) seek(p int, o *modelOwner, r *Record) {
	o.place.Offset++
	if r.Kind != Mark || r.Token != o.marker {
		return
	}
	if r.Epoch != m.epoch && !m.noMarkers {
		m.mark(p, o)
		return
	}
	o.place, o.marker = NewCursor(Place{Offset: o.place.Offset, Epoch: r.Epoch, Number: r.Number + 1, Done: r.End}), ""
	for i := range m.rows[:o.view] {
		if it := &m.rows[i]; Partition(it, modelPartitions) == p && !m.shards[p].settled[it.ID] {
			m.claim(m.shards[p], o, it.ID)
		}
	}
	if s := m.shards[p]; o.epoch == s.epoch {
		place := o.place.Whole
		s.saved = &place
	}
}

// check compares the order of first deliveries of each partition with that of the commits.
func (m *model) check() error {
	for p, s := range m.shards {
		for i := 1; i < len(s.order); i++ {
			if a, b := s.order[i-1], s.order[i]; m.commits[a] > m.commits[b] {
				return fmt.Errorf("partition %d delivered %s after %s", p, b, a)
			}
		}
	}
	return nil
}

// finish lets the last leader and the last owners do all their work, and checks that no row is lost.
func (m *model) finish() error {
	f := m.feeders[len(m.feeders)-1]
	for busy := true; busy; {
		busy = false
		for p := range m.partitions {
			for len(f.pending[p]) > 0 {
				m.store(f, p)
			}
		}
		if !f.opened || f.next < len(f.log.batches) {
			m.read(f, false)
			busy = true
			continue
		}
		for p := range m.partitions {
			o := m.shards[p].owners[len(m.shards[p].owners)-1]
			for o.place.Offset != int64(len(m.partitions[p])) {
				if err := m.deliver(p, o, true); err != nil {
					return err
				}
				busy = true
			}
			if o.marker != "" && !busy { // its marker was in a log that is gone
				m.mark(p, o)
				busy = true
			}
		}
	}
	for i := range m.rows {
		if p := Partition(&m.rows[i], modelPartitions); !m.shards[p].settled[m.rows[i].ID] {
			return fmt.Errorf("row %s is lost", m.rows[i].ID)
		}
	}
	return m.check()
}

// step does one of the things that may happen. It draws by itself, because rapid prefers small
// numbers, with which nothing ever gets done.
func (m *model) step(rnd *rand.Rand) error {
	f, p := m.feeders[rnd.IntN(len(m.feeders))], rnd.IntN(modelPartitions)
	switch n := rnd.IntN(200); {
	case n < 1:
		m.lose()
	case n < 4:
		m.lead()
	case n < 8:
		m.own(p)
	case n < 10 && m.losesTails:
		m.loseTail(p, 1+rnd.IntN(20))
	case n < 11 && rnd.IntN(3) == 0:
		m.elsewhere()
	case n < 14:
		m.commit([][]int{{}})
	case n < 40:
		parts := make([][]int, 1+rnd.IntN(3))
		for i := range parts {
			parts[i] = make([]int, 1+rnd.IntN(3))
			for j := range parts[i] {
				parts[i][j] = rnd.IntN(6)
			}
		}
		m.commit(parts)
	case n < 80:
		m.read(f, rnd.IntN(2) == 0)
	case n < 130:
		m.store(f, p)
	case n < 140:
		m.save(f)
	default:
		owners := m.shards[p].owners
		return m.deliver(p, owners[rnd.IntN(len(owners))], rnd.IntN(3) == 0)
	}
	return nil
}

// modelSteps returns the number of steps of a test; SLUICEBOX_TEST_STEPS replaces it. 1000000 is a
// full run.
func modelSteps(t *testing.T) int {
	text := os.Getenv("SLUICEBOX_TEST_STEPS")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stepsPerRun is enough for some changes of the leader, and few for who reads a failure.
const stepsPerRun = 500

// run makes the steps of a run, and finishes it.
func (m *model) run(seed1, seed2 uint64) error {
	rnd := rand.New(rand.NewPCG(seed1, seed2))
	for range stepsPerRun {
		if err := m.step(rnd); err != nil {
			return err
		}
	}
	return m.finish()
}

// TestOrderAgainstModel: two feeders and two owners of each partition deliver every row, in the order of
// commits. A row is delivered once, because a claim refuses the second.
func TestOrderAgainstModel(t *testing.T) {
	setChecks(t, modelSteps(t)/stepsPerRun)
	var runs, late, rows, parts, snapshots, repeated, resizes int
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(false)
		err := m.run(rapid.Uint64().Draw(t, "seed 1"), rapid.Uint64().Draw(t, "seed 2"))
		if err != nil {
			t.Fatal(err)
		}
		runs, late, rows, snapshots, repeated = runs+1, late+m.late, rows+len(m.rows), snapshots+m.markers, repeated+m.repeated
		parts, resizes = parts+m.parts, resizes+m.resizes
	})
	t.Logf("%d steps, %d rows, %d parts of rows, %d snapshots, %d late records, %d claims refused", runs*stepsPerRun, rows, parts, snapshots, late, repeated)
	if late == 0 || parts == 0 || snapshots == 0 || repeated == 0 || resizes == 0 {
		t.Error("no former leader wrote a record, or nothing was repeated; the test proved nothing")
	}
}

// TestNoOrderWithoutMarkers: without the first records of feeders, which is all that the model leaves
// out, rows are lost or out of order.
func TestNoOrderWithoutMarkers(t *testing.T) {
	for seed := range uint64(1000) {
		if err := newModel(true).run(seed, 0); err != nil {
			t.Logf("run %d: %v", seed, err)
			return
		}
	}
	t.Error("the order held without markers; the test of the order proves nothing")
}

// TestALostTailIsNoticed: Kafka loses records that it had acknowledged, and no row is lost, because the
// next Leader tells. Without that rows are lost.
func TestALostTailIsNoticed(t *testing.T) {
	noticed := 0
	for seed := range uint64(max(500, modelSteps(t)/stepsPerRun)) { // a loss that is not noticed is rare
		m := newModel(false)
		m.losesTails = true
		if err := m.run(seed, 1); err != nil {
			t.Fatalf("run %d: %v", seed, err)
		}
		noticed += m.lostTails
	}
	if noticed == 0 {
		t.Error("no shard noticed a loss; the test proved nothing")
	}
	for seed := range uint64(1000) {
		m := newModel(false)
		m.losesTails, m.forgets = true, true
		if err := m.run(seed, 1); err != nil {
			t.Logf("%d losses noticed; without the number, run %d: %v", noticed, seed, err)
			return
		}
	}
	t.Error("no row was lost without the number; the test proves nothing")
}

// setChecks sets how many runs rapid makes, until the test ends.
func setChecks(t *testing.T, n int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if err := flag.Set("rapid.checks", strconv.Itoa(max(1, n))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set("rapid.checks", before) })
}
