package blackbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// replayed is the output of `sluicebox replay --json`.
type replayed struct {
	ID, State, Reason, Source               string
	Rows, Sent, Skipped, Refused, Remaining int
	UntilAt                                 string `json:"until_at"`

	code   int
	stderr string
}

// sluicebox runs a command with the relay's configuration to its end.
func (r *relay) sluicebox(args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	return commandWithin(r.t, testTimeout, nil, append(args, "-c", r.file())...)
}

// file writes the relay's configuration to a file.
func (r *relay) file() string { return r.cmd.Args[len(r.cmd.Args)-1] }

// checkpoint creates a named checkpoint.
func (r *relay) checkpoint(name string, more ...string) {
	r.t.Helper()
	if out, why, code := r.sluicebox(append([]string{"checkpoint", "create", name}, more...)...); code != 0 {
		r.t.Fatalf("checkpoint create: exit code %d, want 0: %s%s", code, out, why)
	}
}

// made returns the time at which a checkpoint was created.
func (r *relay) made(name string) time.Time {
	r.t.Helper()
	stdout, stderr, code := r.sluicebox("checkpoint", "list", "--json")
	var list struct {
		Checkpoints []struct {
			Name   string
			MadeAt time.Time `json:"made_at"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != 0 {
		r.t.Fatalf("checkpoint list: exit code %d, want 0, %v: %s%s", code, err, stdout, stderr)
	}
	for _, c := range list.Checkpoints {
		if c.Name == name {
			return c.MadeAt
		}
	}
	r.t.Fatalf("checkpoint %s is not listed: %s", name, stdout)
	return time.Time{}
}

// replay runs a replay to its end.
func (r *relay) replay(args ...string) (job replayed) {
	r.t.Helper()
	return r.replays(args)[0]
}

// replays runs several replays to their ends. Requesting them together takes less time than one
// after the other.
func (r *relay) replays(all ...[]string) (jobs []replayed) {
	r.t.Helper()
	jobs = make([]replayed, len(all))
	said, errs := make([]string, len(all)), make([]error, len(all))
	var ends sync.WaitGroup
	for i, args := range all {
		ends.Go(func() {
			job, args := &jobs[i], slices.Concat([]string{"replay", "--json", "-c", r.file()}, args)
			said[i], job.stderr, job.code, errs[i] = execute(testTimeout, nil, args...)
		})
	}
	ends.Wait()
	for i, args := range all {
		if err := errors.Join(errs[i], json.Unmarshal([]byte(said[i]), &jobs[i])); err != nil {
			r.t.Fatalf("replay %q: exit code %d, %v: %s%s", args, jobs[i].code, err, said[i], jobs[i].stderr)
		}
	}
	return jobs
}

// detach starts a replay and returns its id.
func (r *relay) detach(args ...string) string {
	r.t.Helper()
	stdout, stderr, code := r.sluicebox(append([]string{"replay", "--detach"}, args...)...)
	if code != 0 {
		r.t.Fatalf("replay %q: exit code %d: %s%s", args, code, stdout, stderr)
	}
	return strings.TrimSpace(stdout)
}

// job returns a replay as listed.
func (r *relay) job(id string) (job replayed) {
	r.t.Helper()
	stdout, stderr, code := r.sluicebox("replay", "list", "--json")
	var list struct{ Replays []replayed }
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != 0 {
		r.t.Fatalf("replay list: exit code %d, want 0, %v: %s%s", code, err, stdout, stderr)
	}
	for _, job := range list.Replays {
		if job.ID == id {
			return job
		}
	}
	r.t.Fatalf("replay %s is not listed: %s", id, stdout)
	return job
}

// untilDone waits until the relay reports the end of a replay.
func (r *relay) untilDone(id string) (job replayed) {
	r.t.Helper()
	r.waitFor("replay=" + id + " state=done")
	return r.job(id)
}

// replayMetric returns the number of replayed rows with one result at the scene's sink.
func (r *relay) replayMetric(outcome string) float64 {
	r.t.Helper()
	return r.metric(fmt.Sprintf("sluicebox_replay_rows_total{outcome=%q,sink=%q}", outcome, "flowcatalyst"))
}
