package blackbox

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// recovery is the goal for the first arrival of a new document after a server is back.
const recovery = 5 * time.Second

// busy is a load of eight writers and at most 300 documents per second, until its wait is
// called. Its commit order differs from the createdAt order.
func busy(broken bool) mongoLoad {
	return mongoLoad{Clients: 8, Rate: tempo(150), Most: 3, Groups: tempo(50), Late: true, Broken: broken}
}

// The relay is killed at random moments, including its start, under eight writers. All
// documents arrive, first arrivals in the commit order of each group. Only documents that
// were in flight at a kill arrive again.
func TestMongoKilledUnderLoad(t *testing.T) {
	t.Parallel()
	aMongo(t, "", func(s *mongoScene) {
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 10 * time.Millisecond} })
		kills, inFlight, arrivals := crashes(s.t, 3), 0, unsettledArrivals(s.t, s.to, s.open)
		r := s.run()
		for kill := range kills {
			wait, end := s.write(busy(false)), time.After(round)
			<-time.After(time.Duration(rand.Int64N(int64(round)))) // at random
			r.kill()
			s.disconnected()
			inFlight += arrivals()
			r = start(s.t, s.config)
			<-end
			s.shuffled(kill + 1)
			wait()
		}
		rows, again := s.expectAll()
		if again > inFlight {
			s.t.Errorf("%d documents arrived again, %d were in flight at the kills", again, inFlight)
		}
		s.t.Logf("%d documents under %d kills, first arrivals in order; %d were created before one that committed earlier; %d in flight at the kills, %d arrived again",
			rows, kills, s.reordered(), inFlight, again)
		expectStop(s.t, r)
	})
}

// shuffled waits until that many documents were committed out of createdAt order. Without
// them the order of arrivals proves nothing.
func (s *mongoScene) shuffled(least int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		if n := s.reordered(); n < least {
			return fmt.Sprintf("%d documents are out of the order of createdAt, want %d", n, least)
		}
		return ""
	})
}

// setFault is a fault of a replica set under load.
type setFault struct {
	name string
	// strike causes the fault and returns once the set accepts writes again, with a function
	// that restores the set.
	strike func(set *servers.MongoSet) (mend func())
}

// setFaults returns the faults for a set of that many members.
func setFaults() map[int][]setFault {
	down := func(mode string) func(set *servers.MongoSet) func() {
		return func(set *servers.MongoSet) func() {
			set.Stop(mode)
			set.Restart(nil)
			return func() {}
		}
	}
	return map[int][]setFault{
		1: {{"crashes", down("immediate")}, {"shuts down", down("fast")}},
		3: {
			{"steps down", func(set *servers.MongoSet) func() {
				set.StepDown()
				return func() {}
			}},
			{"crashes", func(set *servers.MongoSet) func() {
				struck := set.Primary()
				struck.Stop("immediate")
				set.Primary()
				return func() { struck.Restart(nil) }
			}},
			{"freezes", func(set *servers.MongoSet) func() {
				struck := set.Primary()
				struck.Freeze()
				set.Primary()
				return struck.Thaw
			}},
		},
	}
}

// The primary of a replica set fails in several ways under eight writers. No document is
// lost, first arrivals are in the commit order of each group, none stays PROCESSING, and
// documents arrive soon after the set accepts writes again.
func TestMongoThePrimary(t *testing.T) {
	t.Parallel()
	for members, all := range setFaults() {
		t.Run(fmt.Sprintf("of %d", members), func(t *testing.T) {
			t.Parallel()
			anOwnMongo(t, members, nil, "", func(s *mongoScene, set *servers.MongoSet) {
				s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 5 * time.Millisecond} })
				r := s.run()
				times, took := crashes(s.t, len(all)), map[string][]time.Duration{}
				for i := range times {
					what := all[i%len(all)]
					wait := s.write(busy(true))
					<-time.After(time.Duration(int64(time.Second) + rand.Int64N(int64(round)))) // at random
					mend := what.strike(set)
					set.AwaitMajority()
					took[what.name] = append(took[what.name], s.arrives(time.Now()))
					mend()
					s.arrives(time.Now())
					wait()
				}
				rows, again := s.expectAll()
				s.t.Logf("%d documents, %d times, first arrivals in order; %d were created before one that committed earlier; %d arrived again",
					rows, times, s.reordered(), again)
				for _, what := range all {
					tell(s.t, takeover{name: what.name, within: recovery}, took[what.name])
				}
				expectStop(s.t, r)
			})
		})
	}
}

// arrives waits for the arrival of a document that was written after a time, and returns how
// long it took.
func (s *mongoScene) arrives(since time.Time) (after time.Duration) {
	s.t.Helper()
	seen := 0
	within(s.t, testTimeout, func() string {
		log := s.to.Log()
		for ; seen < len(log); seen++ {
			if r := log[seen]; r.At.After(since) && writtenIn(s.t, r.Payload).At >= since.UnixMilli() {
				after = r.At.Sub(since)
				return ""
			}
		}
		return fmt.Sprintf("nothing that was written after %s has arrived", since.Format(time.TimeOnly))
	})
	return after
}
