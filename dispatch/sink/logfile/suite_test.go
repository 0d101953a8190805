package logfile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/logfile"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a file behind a link. The link can also lead elsewhere, in one step.
type output struct {
	tb         testing.TB
	link, file string
}

func newOutput(tb testing.TB) *output {
	tb.Helper()
	dir := tb.TempDir()
	o := &output{tb, filepath.Join(dir, "log"), filepath.Join(dir, "file")}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		tb.Fatal(err)
	}
	o.lead(o.file)
	return o
}

// lead lets the link lead to a path.
func (o *output) lead(to string) {
	next := o.link + ".next"
	if err := os.Symlink(to, next); err != nil {
		o.tb.Fatal(err)
	}
	if err := os.Rename(next, o.link); err != nil {
		o.tb.Fatal(err)
	}
}

// Stop implements sinktest.Broker: the output is a pipe that no process reads.
func (o *output) Stop()  { o.lead(filepath.Join(filepath.Dir(o.link), "pipe")) }
func (o *output) Start() { o.lead(o.file) }

func (o *output) Stored() (ids []string) {
	content, err := os.ReadFile(o.file)
	if err != nil {
		o.tb.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var row struct{ ID string }
		if err := json.Unmarshal(line, &row); err != nil {
			o.tb.Errorf("%v: %s", err, line)
		}
		ids = append(ids, row.ID)
	}
	return ids
}

func newSink(tb testing.TB, cfg logfile.Config) *logfile.Sink {
	tb.Helper()
	s, err := logfile.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

func to(path string) (cfg logfile.Config) {
	cfg.Output = path
	return cfg
}

func TestSuite(t *testing.T) {
	for _, fsync := range []bool{false, true} {
		t.Run(fmt.Sprintf("fsync %t", fsync), func(t *testing.T) {
			sinktest.RunBroker(t, sinktest.BrokerHarness{
				New: func(tb testing.TB) (sink.Sink, sinktest.Broker) {
					o := newOutput(tb)
					cfg := to(o.link)
					cfg.Fsync = fsync
					return newSink(tb, cfg), o
				},
				Kind: "order", Mode: sink.Ordered,
				Faults: []sinktest.Fault{
					{Name: "no JSON", Class: sink.Rejected, Message: func(m *sink.Message) { m.Payload = []byte("{") }},
					{Name: "disk full", Class: sink.Unavailable, Break: func(_ testing.TB, b sinktest.Broker) func() {
						b.(*output).lead("/dev/full")
						return b.Start
					}},
					{Name: "no folder", Class: sink.Misconfigured, Break: func(_ testing.TB, b sinktest.Broker) func() {
						b.(*output).lead("/does/not/exist")
						return b.Start
					}},
					{Name: "a folder", Class: sink.Misconfigured, Break: func(tb testing.TB, b sinktest.Broker) func() {
						b.(*output).lead(tb.TempDir())
						return b.Start
					}},
					{Name: "not allowed", Class: sink.Misconfigured, Sink: func(tb testing.TB, _ sinktest.Broker) sink.Sink {
						return newSink(tb, to("/proc/sys/kernel/ostype")) // no one may write it, not even root
					}},
				},
			})
		})
	}
}

// deliver sends messages within a generous time.
func deliver(tb testing.TB, s *logfile.Sink, msgs ...sink.Message) sink.Result {
	tb.Helper()
	res := s.Deliver(tb.Context(), msgs)
	for i := range msgs {
		if out := res.At(i); (out.Detail == "") != (out.Class == sink.Delivered || out.Class == sink.NotSent) {
			tb.Errorf("message %s is %s with the detail %q", msgs[i].ID, out.Class, out.Detail)
		}
	}
	return res
}

// The disk has a row, and the name of its file, before the row is delivered. A crash would lose a
// new file without a name.
func TestFsync(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "link")
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "logs", "file")
	if err := os.Symlink(file, path); err != nil {
		t.Fatal(err)
	}
	cfg := to(path)
	cfg.Fsync = true
	s := newSink(t, cfg)
	var synced []string
	s.BeforeSync(func(name string) error { synced = append(synced, name); return nil })
	expect := func(what string, class sink.Class, want ...string) {
		t.Helper()
		synced = nil
		if res := s.Deliver(t.Context(), []sink.Message{{ID: "1"}}); res.Class != class || !slices.Equal(synced, want) {
			t.Errorf("%s: %s (%s), on disk are %q, want %s and %q", what, res.Class, res.Detail, synced, class, want)
		}
	}
	if out := s.Probe(t.Context(), ""); out.Class != sink.Delivered {
		t.Errorf("%+v", out)
	}
	expect("a file that a probe created", sink.Delivered, path, filepath.Dir(file))
	expect("a file with a name", sink.Delivered, path)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	expect("a file that is created again", sink.Delivered, path, filepath.Dir(file))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.BeforeSync(func(name string) error {
		if name == path {
			return nil
		}
		return &fs.PathError{Op: "sync", Path: name, Err: syscall.EIO}
	})
	expect("a folder on a broken disk", sink.Unavailable)
}

// A pipe that is full does not hold a request beyond its time. What it was writing arrives once,
// before everything else.
func TestSlowReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	cfg := to(path)
	cfg.RequestTimeout = 100 * time.Millisecond
	s := newSink(t, cfg)
	large := fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), 1<<20))
	for range 2 {
		if res := deliver(t, s, sink.Message{ID: "1", Payload: large}); res.Class != sink.Unavailable {
			t.Errorf("a full pipe: %s: %s", res.Class, res.Detail)
		}
	}
	read := make(chan []byte)
	go func() {
		var all []byte
		part := make([]byte, 1<<16)
		for !bytes.Contains(all, []byte(`{"id":"2"`)) || all[len(all)-1] != '\n' {
			n, err := reader.Read(part)
			if err != nil {
				break
			}
			all = append(all, part[:n]...)
		}
		read <- all
	}()
	deadline := time.Now().Add(20 * time.Second)
	for deliver(t, s, sink.Message{ID: "2"}).Class != sink.Delivered {
		if time.Now().After(deadline) {
			t.Fatal("the reader does not free the pipe")
		}
	}
	all := <-read
	first, rest, _ := bytes.Cut(all, []byte("\n"))
	if !bytes.HasPrefix(first, []byte(`{"id":"1","data":"xxx`)) || !json.Valid(first) || !bytes.HasPrefix(rest, []byte(`{"id":"2"}`)) {
		t.Errorf("the first line has %d bytes, and behind it is %.100q", len(first), rest)
	}
}
