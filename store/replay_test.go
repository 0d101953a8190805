package store_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func TestCheckNamed(t *testing.T) {
	for _, name := range []string{"a", "before_v2", "before-two", "a-", "0", "_", strings.Repeat("z", 63)} {
		if err := store.ValidateSavepointName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "A", "-a", "a b", "a\n", "ä", "a'b", "a.b", strings.Repeat("z", 64)} {
		if err := store.ValidateSavepointName(name); err == nil || !strings.Contains(err.Error(), "invalid checkpoint name ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestJobStates(t *testing.T) {
	for state, want := range map[store.JobState]struct{ begun, ended bool }{
		store.JobWaiting: {}, store.JobCopying: {begun: true}, store.JobPlaying: {begun: true}, store.JobPaused: {},
		store.JobDone: {true, true}, store.JobFailed: {ended: true}, store.JobRefused: {ended: true}, store.JobCancelled: {ended: true},
	} {
		if state.Started() != want.begun || state.Ended() != want.ended {
			t.Errorf("%s: begun %t, ended %t", state, state.Started(), state.Ended())
		}
	}
}

func TestDesiredState(t *testing.T) {
	for _, state := range []store.DesiredState{store.DesiredRun, store.DesiredPause, store.DesiredCancel} {
		if err := state.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, state := range []store.DesiredState{"", "stop", "RUN"} {
		if err := state.Validate(); err == nil || !strings.Contains(err.Error(), "run, pause or cancel") {
			t.Errorf("%q: %v", state, err)
		}
	}
}
