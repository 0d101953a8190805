package replay

import (
	"iter"
	"maps"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// Job is a replay with rows in memory.
type Job struct {
	id          string
	rows        map[int64]bool // in memory, by N
	byLane      map[store.LaneKey]int
	bytes       int64
	withdrawing bool
}

// ID is the id of the job.
func (j *Job) ID() string { return j.id }

// Withdrawing reports whether the job's rows leave memory as soon as they are in no
// request.
func (j *Job) Withdrawing() bool { return j.withdrawing }

// Finished is the result of a row that is not yet recorded. T is what the caller keeps with
// it.
type Finished[T any] struct {
	store.FinishedRow
	Of  T
	job *Job
}

// Jobs holds the jobs of a sink. It is not safe for concurrent use.
type Jobs[T any] struct {
	jobs      map[string]*Job
	finished  []Finished[T]
	recording []Finished[T]
	changed   bool
}

// NewJobs returns no jobs.
func NewJobs[T any]() Jobs[T] { return Jobs[T]{jobs: map[string]*Job{}} }

// Open returns the job with an id, which no longer withdraws its rows. The caller enters a
// row at once.
func (js *Jobs[T]) Open(id string) *Job {
	j := js.jobs[id]
	if j == nil {
		j = &Job{id: id, rows: map[int64]bool{}, byLane: map[store.LaneKey]int{}}
		js.jobs[id] = j
	}
	j.withdrawing = false
	return j
}

// Enter counts row number n of a job, with size bytes of payload. It reports false if the
// row is in memory already.
func (js *Jobs[T]) Enter(j *Job, n int64, lane store.LaneKey, size int) bool {
	if j.rows[n] {
		return false
	}
	j.rows[n] = true
	j.byLane[lane]++
	j.bytes += int64(size)
	return true
}

// Leave removes a row from the counts.
func (js *Jobs[T]) Leave(j *Job, n int64, lane store.LaneKey, size int) {
	delete(j.rows, n)
	j.bytes -= int64(size)
	if j.byLane[lane]--; j.byLane[lane] == 0 {
		delete(j.byLane, lane)
	}
	if len(j.rows) == 0 {
		delete(js.jobs, j.id)
	}
	js.changed = true
}

// Withdraw begins to withdraw the rows of a job; nil if it has none in memory.
func (js *Jobs[T]) Withdraw(id string) *Job {
	j := js.jobs[id]
	if j != nil {
		j.withdrawing = true
	}
	return j
}

// All iterates over the ids of the jobs. Jobs may be forgotten meanwhile.
func (js *Jobs[T]) All() iter.Seq[string] { return maps.Keys(js.jobs) }

// Load returns the rows of a job in memory, their payload in bytes, and their number per
// lane. The map belongs to Jobs.
func (js *Jobs[T]) Load(id string) (rows int, bytes int64, byLane map[store.LaneKey]int) {
	j := js.jobs[id]
	if j == nil {
		return 0, 0, nil
	}
	return len(j.rows), j.bytes, j.byLane
}

// Finish queues the result of a row to be recorded.
func (js *Jobs[T]) Finish(j *Job, row store.FinishedRow, of T) {
	js.finished = append(js.finished, Finished[T]{row, of, j})
}

// Unrecorded is the number of results that are not yet recorded.
func (js *Jobs[T]) Unrecorded() int { return len(js.finished) + len(js.recording) }

// Waiting is the number of results that Next may return.
func (js *Jobs[T]) Waiting() int { return len(js.finished) }

// Results iterates over the results that are not yet recorded.
func (js *Jobs[T]) Results() iter.Seq[Finished[T]] {
	return slices.Values(slices.Concat(js.finished, js.recording))
}

// Next begins to record at most limit results of one job, in order; none while a batch is
// being recorded.
func (js *Jobs[T]) Next(limit int) (id string, rows []store.FinishedRow) {
	if len(js.recording) > 0 || len(js.finished) == 0 {
		return "", nil
	}
	job, n := js.finished[0].job, 0
	for n < min(limit, len(js.finished)) && js.finished[n].job.id == job.id {
		rows = append(rows, js.finished[n].FinishedRow)
		n++
	}
	js.recording = js.finished[:n:n]
	js.finished = js.finished[n:]
	return job.id, rows
}

// Recorded ends the batch and returns it. The caller lets each row leave, and clears the
// batch: its memory stays in use until the next result.
func (js *Jobs[T]) Recorded() []Finished[T] {
	batch := js.recording
	js.recording = nil
	return batch
}

// Notify records that a replay may continue.
func (js *Jobs[T]) Notify() { js.changed = true }

// TakeChanged reports whether a replay may continue since the last call: rows left memory,
// or Notify was called.
func (js *Jobs[T]) TakeChanged() bool {
	changed := js.changed
	js.changed = false
	return changed
}

// Holds keeps the rows with their own lanes that were in flight when a job held their key.
// R identifies a row.
type Holds[R comparable] struct {
	inFlight map[store.LaneKey]map[R]bool
}

// NewHolds returns no holds.
func NewHolds[R comparable]() Holds[R] {
	return Holds[R]{inFlight: map[store.LaneKey]map[R]bool{}}
}

// Len is the number of held keys.
func (h *Holds[R]) Len() int { return len(h.inFlight) }

// Hold begins a hold with the rows in flight.
func (h *Holds[R]) Hold(key store.LaneKey, inFlight iter.Seq[R]) {
	rows := map[R]bool{}
	for r := range inFlight {
		rows[r] = true
	}
	h.inFlight[key] = rows
}

// Release ends a hold.
func (h *Holds[R]) Release(key store.LaneKey) { delete(h.inFlight, key) }

// Rows iterates over the rows that a hold waits for; false if there is no hold.
func (h *Holds[R]) Rows(key store.LaneKey) (rows iter.Seq[R], held bool) {
	waits, held := h.inFlight[key]
	return maps.Keys(waits), held
}

// Narrow keeps only the rows that are still in flight, and reports whether none is left.
func (h *Holds[R]) Narrow(key store.LaneKey, inFlight iter.Seq[R]) (quiet bool) {
	before, now := h.inFlight[key], map[R]bool{}
	for r := range inFlight {
		if before[r] {
			now[r] = true
		}
	}
	h.inFlight[key] = now
	return len(now) == 0
}
