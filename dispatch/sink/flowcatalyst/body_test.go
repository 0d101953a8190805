package flowcatalyst

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

func batch(n, size int) []sink.Message {
	msgs := make([]sink.Message, n)
	for i := range msgs {
		payload := fmt.Appendf(nil, `{"id":"%08d","data":"`, i)
		payload = append(payload, bytes.Repeat([]byte("x"), max(0, size-len(payload)-2))...)
		msgs[i] = sink.Message{ID: fmt.Sprint(i), Kind: KindEvent, Payload: append(payload, `"}`...)}
	}
	return msgs
}

// TestBodyAllocates: a body costs one allocation of its own size.
func TestBodyAllocates(t *testing.T) {
	cfg := Config{Wire: WireItems}
	r, err := cfg.route(KindEvent)
	if err != nil {
		t.Fatal(err)
	}

	msgs := batch(100, 200)
	if b := r.body(msgs); len(b) != cap(b) && cap(b)-len(b) > len(b)/4 {
		t.Errorf("body of %d bytes has capacity %d", len(b), cap(b))
	}
	if n := testing.AllocsPerRun(100, func() { r.body(msgs) }); n > 1 {
		t.Errorf("got %v allocations per body", n)
	}
}

func BenchmarkBody(b *testing.B) {
	cfg := Config{Wire: WireItems}
	r, err := cfg.route(KindEvent)
	if err != nil {
		b.Fatal(err)
	}

	for _, n := range []int{1, 100, 1000} {
		msgs := batch(n, 500)
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if sent, why := r.fit(msgs); sent != n {
					b.Fatal(why)
				}
				b.SetBytes(int64(len(r.body(msgs))))
			}
		})
	}
}
