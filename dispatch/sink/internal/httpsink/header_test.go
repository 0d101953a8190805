package httpsink

import (
	"net/url"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
)

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
		if !ascii.Visible(key) || len(key) > maxKey {
			t.Fatalf("%q becomes %q", id, key)
		}
		// The key is reversible, so no two ids share a key.
		if back, err := url.PathUnescape(key); err != nil || back != id {
			t.Fatalf("%q becomes %q, which reads as %q, %v", id, key, back, err)
		}
	})
}
