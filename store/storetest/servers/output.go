package servers

import (
	"bytes"
	"sync"
	"time"
)

// output stores the output of a program and lets callers wait for a text in it.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // closed and replaced when text has grown
}

func newOutput() *output { return &output{grown: make(chan struct{})} }

// Write appends to the text. It never fails.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	close(o.grown)
	o.grown = make(chan struct{})
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// has reports whether the output contains text, and returns a channel that is closed when
// there is more output.
func (o *output) has(text string) (bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text.Bytes(), []byte(text)), o.grown
}

// await waits until the output contains text, the program has ended or the limit is over.
// It reports whether the text came.
func (o *output) await(text string, ended <-chan struct{}, limit time.Duration) bool {
	timeout := time.After(limit)
	for {
		found, more := o.has(text)
		if found {
			return true
		}
		select {
		case <-more:
		case <-ended:
			return false
		case <-timeout:
			return false
		}
	}
}
