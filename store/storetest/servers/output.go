package servers

import (
	"bytes"
	"sync"
	"time"
)

// output keeps what a program prints and lets others wait for a text in it.
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

// has tells whether the text is there, else what is closed when there is more.
func (o *output) has(text string) (bool, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text.Bytes(), []byte(text)), o.grown
}

// await waits for a text until the program has ended or the time is over, and
// tells whether it came.
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
