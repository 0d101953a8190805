package flowcatalyst

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

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

// TestBodyAllocates: a body costs one allocation, of its own size.
func TestBodyAllocates(t *testing.T) {
	cfg := Config{Wire: WireItems}
	r, err := cfg.route(KindEvent)
	if err != nil {
		t.Fatal(err)
	}
	msgs := batch(100, 200)
	if b := r.body(msgs); len(b) != cap(b) && cap(b)-len(b) > len(b)/4 {
		t.Errorf("a body of %d bytes lies in %d", len(b), cap(b))
	}
	if n := testing.AllocsPerRun(100, func() { r.body(msgs) }); n > 1 {
		t.Errorf("a body costs %v allocations", n)
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

func TestIdempotencyKey(t *testing.T) {
	for id, want := range map[string]string{
		"0HZXEQ5Y8JY5Z":                        "0HZXEQ5Y8JY5Z",
		"4bf7c1de-0c1c-4f0e-8d54-90a4a7c2c1ab": "4bf7c1de-0c1c-4f0e-8d54-90a4a7c2c1ab",
		`a/b:c=+"~`:                            `a/b:c=+"~`,
		"":                                     "",
		"a b":                                  "a%20b",
		"a%20b":                                "a%2520b",
		"a\r\nX: y":                            "a%0D%0AX:%20y",
		"é\x00\x7f":                            "%C3%A9%00%7F",
		strings.Repeat("x", 255):               strings.Repeat("x", 255),
		strings.Repeat("x", 256):               "",
		strings.Repeat("é", 100):               "",
	} {
		if got := idempotencyKey(id); got != want {
			t.Errorf("%q becomes %q, want %q", id, got, want)
		}
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, id := range []string{"0HZXEQ5Y8JY5Z", "a b%", "\r\n", "é", "%zz"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		key := idempotencyKey(id)
		if key == "" {
			if id != "" && len(id) <= maxKey/3 {
				t.Fatalf("%q has no key", id)
			}
			return
		}
		if !visible(key) || len(key) > maxKey {
			t.Fatalf("%q becomes %q", id, key)
		}
		// That it can be read back says that no two ids share a key.
		if back, err := url.PathUnescape(key); err != nil || back != id {
			t.Fatalf("%q becomes %q, which reads as %q, %v", id, key, back, err)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("one\r\ntwo\x00\x1b[0m", "secret")
	f.Add(strings.Repeat("é ", 400), "é")
	f.Add("\xff secret\u2028", "secret")
	f.Fuzz(func(t *testing.T, s, token string) {
		got := clean(s, token)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > maxDetail+1 {
			t.Fatalf("%q", got)
		}
		if got != strings.Join(strings.Fields(got), " ") {
			t.Fatalf("blanks are left in %q", got)
		}
		for _, r := range got {
			if r < ' ' || r == 0x7f || r == '\u2028' || r == '\u202e' {
				t.Fatalf("%q holds %U", got, r)
			}
		}
		// Only tokens that Validate lets pass, and that are no part of what is
		// put in their place.
		if len(token) > 3 && visible(token) && !strings.Contains("…"+redacted, token) && strings.Contains(got, token) {
			t.Fatalf("%q shows %q", got, token)
		}
	})
}
