// Package lanekinds finds the kinds of spilled lanes with one read per kind instead of one
// per lane.
package lanekinds

import "github.com/sluicebox/sluicebox/store"

// FindKinds returns the kinds by their hash. next reads the first lane of the outbox after
// a hash, and its kind.
func FindKinds(next func(after store.LaneHash) (lane store.LaneHash, kind string, found bool, err error)) (map[store.KindHash]string, error) {
	kinds := map[store.KindHash]string{}
	for after := (store.LaneHash{}); ; {
		lane, kind, found, err := next(after)
		if err != nil || !found {
			return kinds, err
		}
		kinds[lane.Kind()] = kind
		after = lane.Kind().Last()
	}
}
