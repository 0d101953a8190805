package record

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// modelReading is a partition as read from its first record on.
type modelReading struct {
	records []Record
	places  []Place // before each record, and at the end
	late    []bool
	gaps    []int
	rows    []modelRow // first occurrences
}

type modelRow struct {
	id         string
	begin, end int // offsets of its first and its last record
}

func readModel(records []Record) (*modelReading, error) {
	m := &modelReading{records: records, late: make([]bool, len(records))}
	c := NewCursor(Place{})
	for i, r := range records {
		m.places = append(m.places, c.Whole)
		before := c.Place
		fresh, err := c.Take(&r, int64(i), comparePositions)
		m.late[i] = err == nil && c.Epoch == before.Epoch && c.Number == before.Number
		switch {
		case err != nil && r.IsGap():
			m.gaps = append(m.gaps, i)
			c = NewCursor(Place{Offset: int64(i) + 1, Epoch: r.Epoch, Number: r.Number + 1})
		case err != nil:
			return nil, err
		case fresh && r.Kind == Row:
			m.rows = append(m.rows, modelRow{r.Item.ID, int(m.places[i].Offset), i})
		}
	}
	m.places = append(m.places, c.Whole)
	return m, nil
}

// start finds a place for the records from an offset on, as a source does whose partition begins at low.
func (m *modelReading) start(low, from int, until Place) (at Place, searches int, err error) {
	for _, earlier := range []int{0, 5, 50, len(m.records)} {
		searches++
		begin := max(low, from-earlier)
		if begin == 0 {
			return Place{}, searches, nil
		}
		s, done := Starter{Before: int64(from), Until: until}, false
		for i := begin; i < int(until.Offset) && !done; i++ {
			done = s.Take(m.records[i], int64(i), comparePositions)
		}
		if at, found := s.Place(done); found {
			return at, searches, nil
		}
	}
	return at, searches, errors.New("no place found")
}

// check reads a range from a place on. The rows are those of the range, and perhaps earlier ones.
// committed are all rows of the partition, in the order of commits.
func (m *modelReading) check(at Place, from int, until Place, committed []string) error {
	var got []string
	c, gap := NewCursor(at), false
	for i := int(at.Offset); i < int(until.Offset); i++ {
		r := m.records[i]
		fresh, err := c.Take(&r, int64(i), comparePositions)
		switch {
		case err != nil && r.IsGap() && slices.Contains(m.gaps, i):
			if gap = i >= from; !gap {
				c, got = NewCursor(Place{Offset: int64(i) + 1, Epoch: r.Epoch, Number: r.Number + 1}), nil
				continue
			}
		case err != nil:
			return fmt.Errorf("record %d: %w", i, err)
		}
		if gap { // a source ends here
			until.Offset = int64(i)
			break
		}
		if fresh && r.Kind == Row {
			if m.late[i] {
				return fmt.Errorf("record %d is late, and its row was read", i)
			}
			got = append(got, r.Item.ID)
		}
	}
	for i := 1; i < len(got); i++ {
		a, b := slices.Index(committed, got[i-1]), slices.Index(committed, got[i])
		if a >= b {
			return fmt.Errorf("row %s was read after %s", got[i], got[i-1])
		}
		if b > a+1 {
			return fmt.Errorf("row %s was not read between %s and %s", committed[a+1], got[i-1], got[i])
		}
	}
	for _, row := range m.rows {
		if row.begin >= from && row.end < int(until.Offset) && !slices.Contains(got, row.id) {
			return fmt.Errorf("row %s of record %d was not read", row.id, row.end)
		}
	}
	return nil
}

// TestStartInTheMiddle: from wherever a range begins, its rows are read once, in the order of commits, and
// no late record is read.
func TestStartInTheMiddle(t *testing.T) {
	ranges, late, found, again, lost := 0, 0, 0, 0, 0
	for seed := range uint64(modelSteps(t) / stepsPerRun) {
		model := newModel(false)
		if err := model.run(seed, 2); err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(seed, 3))
		for p, records := range model.partitions {
			m, err := readModel(records)
			if err != nil {
				t.Fatal(err)
			}
			var committed []string
			for i := range model.rows {
				if it := &model.rows[i]; Partition(it, modelPartitions) == p {
					committed = append(committed, it.ID)
				}
			}
			for range 200 {
				from := rnd.IntN(len(records))
				low, until := rnd.IntN(from+1), m.places[from+1+rnd.IntN(len(records)-from)]
				if rnd.IntN(2) == 0 {
					low = 0
				}
				if int(until.Offset) <= from {
					continue
				}
				ranges++
				if m.late[from] {
					late++
				}
				at, searches, err := m.start(low, from, until)
				switch {
				case err != nil && low > 0:
					lost++
					continue
				case searches > 1:
					again++
				default:
					found++
				}
				if err == nil {
					err = m.check(at, from, until, committed)
				}
				if err != nil {
					for i, r := range records {
						t.Log(i, m.late[i], r.Kind, r.Epoch, r.Number, r.After, r.Index, r.End, r.Item.ID, r.AckedEpoch, r.Acked)
					}
					t.Fatalf("run %d, partition %d from %d (%d) to %+v, place %+v: %v", seed, p, from, low, until, at, err)
				}
			}
		}
	}
	t.Logf("%d ranges, %d of them from a late record: %d places found at once, %d later, %d lost", ranges, late, found, again, lost)
	if late == 0 || again == 0 || lost*4 > ranges {
		t.Error("no range began at a late record, or no search began again, or too many were lost; the test proved nothing")
	}
}

// A Leader of a topic with another number of partitions proves nothing about the records before it: their rows are in
// other partitions.
func TestAResizeProvesNothing(t *testing.T) {
	for _, before := range []int{1, 2, 4} {
		var leaders []Record
		numbers := make([]uint64, before)
		for i := range numbers {
			numbers[i] = 10
		}
		err := NewSplitter(2, 2, "").Lead(Acked{Epoch: 1, Numbers: numbers}, func(_ int, r *Record) error {
			leaders = append(leaders, *r)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s := Starter{Before: 1, Until: Place{Offset: 5, Epoch: 2}}
		s.Take(Record{Kind: Mark, Epoch: 1, Number: 3}, 0, comparePositions)
		done := s.Take(leaders[0], 1, comparePositions)
		if _, found := s.Place(done); !done || found != (before == 2) {
			t.Errorf("from %d to 2 partitions: a place was found: %t", before, found)
		}
	}
}
