package lane

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Shares never take more slots than there are. Each that waits is woken, and gets a slot after at most
// one of each other share, whatever the others want.
func TestSlotsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 4
		size := rapid.IntRange(1, 3).Draw(t, "size")
		slots, now := NewSlots(size, 0), time.Unix(1e9, 0)
		var shares [n]*Share
		var woken, waits [n]bool
		var held [n]int
		var overtaken [n][n]int // how often another took a slot while a share waits
		for i := range shares {
			shares[i] = slots.Join(func() { woken[i] = true })
		}
		take := func(i int) {
			if !shares[i].take(now) {
				waits[i] = true
				return
			}
			held[i]++
			waits[i], woken[i], overtaken[i] = false, shares[i].granted > 0, [n]int{}
			for k := range shares {
				if waits[k] && !woken[k] {
					if overtaken[k][i]++; overtaken[k][i] > 1 {
						t.Fatalf("share %d took %d slots while %d waits", i, overtaken[k][i], k)
					}
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) { take(rapid.IntRange(0, n-1).Draw(t, "share")) },
			"wake": func(t *rapid.T) {
				for i := range shares {
					if woken[i] {
						woken[i] = false
						take(i)
						if waits[i] {
							t.Fatalf("share %d was woken and finds no slot", i)
						}
					}
				}
			},
			"rest": func(t *rapid.T) {
				i := rapid.IntRange(0, n-1).Draw(t, "share")
				shares[i].rest()
				waits[i], woken[i], overtaken[i] = false, false, [n]int{} // it waits anew
			},
			"give back": func(t *rapid.T) {
				if i := rapid.IntRange(0, n-1).Draw(t, "share"); held[i] > 0 {
					held[i]--
					shares[i].giveBack()
				}
			},
			"": func(t *rapid.T) {
				sum, granted, waiting := 0, 0, 0
				for i := range shares {
					sum += held[i]
					granted += shares[i].granted
					if waits[i] && !woken[i] {
						waiting++
					}
				}
				used, _, _ := slots.Usage()
				if sum+granted != used || used > size {
					t.Fatalf("%d requests and %d granted slots, %d slots are used of %d", sum, granted, used, size)
				}
				if waiting > 0 && used < size {
					t.Fatalf("%d shares wait beside %d slots of %d", waiting, used, size)
				}
			},
		})
	})
}

// A share that leaves gives back the slots of requests that were canceled.
func TestShareLeavesSlots(t *testing.T) {
	slots, now, woken := NewSlots(2, 0), time.Unix(1e9, 0), 0
	a, b := slots.Join(func() {}), slots.Join(func() { woken++ })
	for range 2 {
		if !a.take(now) {
			t.Fatal("two slots are not taken by the first share")
		}
	}
	if b.take(now) {
		t.Fatal("a third slot is taken")
	}
	a.Leave()
	if woken != 1 || !b.take(now) || !b.take(now) {
		t.Errorf("the other share was woken %d times, and has no slot", woken)
	}
	a.giveBack() // a late answer
	if used, _, _ := slots.Usage(); used != 2 || a.take(now) {
		t.Errorf("%d slots are used, want 2", used)
	}
}

// With a rate limit the shares send in turns, no more often than one alone.
func TestSharesTakeTurnsAtARate(t *testing.T) {
	slots, now := NewSlots(100, 10), time.Unix(1e9, 0)
	var shares [3]*Share
	var sent [3]int
	for i := range shares {
		shares[i] = slots.Join(func() {})
	}
	for range 6000 { // 60 s
		for i := range shares {
			if shares[i].take(now) {
				sent[i]++
				shares[i].giveBack()
			}
		}
		now = now.Add(10 * time.Millisecond)
	}
	if sum := sent[0] + sent[1] + sent[2]; sum < 599 || sum > 602 {
		t.Errorf("%d requests in 60 s, want 600", sum)
	}
	for i := range sent {
		if sent[i] < 199 || sent[i] > 202 {
			t.Errorf("share %d sent %d, want 200 of each: %v", i, sent[i], sent)
		}
	}
}
