package app

import (
	"cmp"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
)

// maxMoves is how many sources a process hands over at a time.
const maxMoves = 4

// spreadAfter is the default of the key: long enough for a deployment that restarts processes one by one.
const spreadAfter = 30 * time.Second

// handOver returns how the leads of sources move to the processes that are to have them: the one with
// the lowest hash of the names of process and source. Any two processes agree on that, so nobody needs
// to know all of them.
func (p *process) handOver(source string) *sluicebox.HandOver {
	return &sluicebox.HandOver{
		After: cmp.Or(p.options.Config.Settings.SpreadAfter, spreadAfter), Slots: p.moves,
		Prefers: func(process, than string) bool { return prefers(nameOf(process), nameOf(than), source) },
	}
}

// prefers reports whether a process is to lead a source rather than another.
func prefers(process, than, source string) bool {
	return patience(process, source) < patience(than, source)
}

// holderMark is between the name of a process and its id in a holder.
const holderMark = " process "

// nameOf returns the name of the process of a holder. A store adds digits behind it.
func nameOf(holder string) string {
	name, _, _ := strings.Cut(holder, holderMark)
	return name
}
