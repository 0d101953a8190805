package sluicebox

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// fakeDestination answers with its class once it is released.
type fakeDestination struct {
	sink.Sink
	answer sink.Outcome
	let    chan struct{}
	closed chan struct{}
}

func (f *fakeDestination) Deliver(context.Context, []sink.Message) sink.Result {
	<-f.let
	return sink.Result{Outcome: f.answer}
}

func (f *fakeDestination) Close() { close(f.closed) }

// A sink is reopened only for changed files. Requests in flight finish with the old sink,
// and a failed reopen keeps it.
func TestReopen(t *testing.T) {
	var made []*fakeDestination
	var fails error
	refused := 0
	limits := func(string) sink.Limits { return sink.Limits{MaxItems: 1} }
	s := &reopeningSink{limits: limits, onRefusedCredentials: func() { refused++ }}
	inputs := "first"
	again := func(want bool) {
		t.Helper()
		changed, err := s.reopen(Sink{Inputs: []string{inputs}, Open: func() (sink.Sink, error) {
			if fails != nil {
				return nil, fails
			}
			f := &fakeDestination{let: make(chan struct{}), closed: make(chan struct{}), answer: sink.Outcome{Class: sink.Delivered}}
			made = append(made, f)
			return f, nil
		}})
		if changed != want || !errors.Is(err, fails) {
			t.Fatalf("opened anew: %t (%v), want %t", changed, err, want)
		}
	}
	deliver := func() sink.Result { return s.Deliver(t.Context(), []sink.Message{{}}) }

	fails = errors.New("no such file")
	again(false)
	if res := deliver(); res.Class != sink.Misconfigured || !strings.Contains(res.Detail, "no such file") {
		t.Errorf("a sink that is not open answers %+v", res)
	}
	if res, ok := s.Ping(t.Context(), ""); !ok || res.Class != sink.Misconfigured {
		t.Errorf("a ping of it answers %+v, %t", res, ok)
	}
	if l := s.Limits("x"); l.MaxItems != 1 {
		t.Errorf("its limits are %+v", l)
	}
	fails = nil
	again(true)
	again(false)
	first := made[0]
	answers := make(chan sink.Result)
	go func() { answers <- deliver() }()
	first.let <- struct{}{}
	<-answers

	flies := make(chan sink.Result)
	go func() { flies <- deliver() }()
	for s.users() == 0 {
		runtime.Gosched()
	}
	inputs = "second"
	again(true)
	inputs = "another authority"
	again(true)
	select {
	case <-first.closed:
		t.Error("a sink is closed under a request")
	default:
	}
	<-made[1].closed // without users
	first.let <- struct{}{}
	<-flies
	<-first.closed
	if len(made) != 3 {
		t.Errorf("%d sinks were opened", len(made))
	}

	inputs = "third"
	fails = errors.New("unusable")
	again(false)
	made[2].answer = sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonUnauthorized}
	go func() { made[2].let <- struct{}{} }()
	if res := deliver(); res.Class != sink.Misconfigured || refused != 1 {
		t.Errorf("the sink that is still open answers %+v, and the relay was told %d times", res, refused)
	}
	s.Close()
	<-made[2].closed
	if res := deliver(); res.Class != sink.Misconfigured {
		t.Errorf("a closed sink answers %+v", res)
	}
}

// Changed files that could not be used are retried even if they do not change again,
// because a file's owner does not show in its times.
func TestChangedFilesAreTriedAgain(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("first")
	var denied atomic.Bool
	opened := 0
	now := func() (map[string]Sink, error) {
		text, err := os.ReadFile(token)
		return map[string]Sink{"s": {Inputs: string(text), Open: func() (sink.Sink, error) {
			if denied.Load() {
				return nil, errors.New("permission denied")
			}
			opened++
			return &fakeDestination{closed: make(chan struct{})}, nil
		}}}, err
	}
	s := &reopeningSink{}
	first, err := now()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.reopen(first["s"]); err != nil {
		t.Fatal(err)
	}
	r := &Relay{log: slog.New(slog.DiscardHandler), health: newHealth(), observer: noObserver{}}
	r.options.Store(&Options{Reload: Reload{Files: []string{token}, Sinks: now}})
	f := &sinkFiles{Relay: r, sinks: map[string]*reopeningSink{"s": s}, loggedErrors: map[string]string{}}
	f.filesChanged(r.opt().Reload.Files)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- f.keepOpen(ctx) }()
		denied.Store(true)
		put("another")
		time.Sleep(2 * filesInterval)
		synctest.Wait()
		denied.Store(false)
		time.Sleep(2 * filesInterval)
		synctest.Wait()
		if opened != 2 {
			t.Errorf("the sink was opened %d times, want 2", opened)
		}
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// users returns the number of users of the current sink.
func (s *reopeningSink) users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.users
}
