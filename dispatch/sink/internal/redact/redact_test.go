package redact

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

const secret = "canary-7f3d/2a+91c4=Zq"

// TestRedact: the Redactor removes a secret in every form in which a receiver may
// echo it, and keeps the rest of the text.
func TestRedact(t *testing.T) {
	r := New(false, secret)
	escapes := sinktest.Escapes()
	names := slices.Sorted(maps.Keys(escapes))
	forms := []string{"%s", "no %s here", `{"you":"%s"}`, "https://h/a/%s/b", "x%s"}
	for i, first := range names {
		for j, second := range names {
			if second == "upper case" && strings.HasPrefix(first, "base64") {
				continue // not reversible
			}
			text := fmt.Sprintf(forms[(i+j)%len(forms)], escapes[second](escapes[first](secret)))
			got := r.OneLine("said: " + text)
			if !strings.Contains(got, sink.Redacted) || !strings.HasPrefix(got, "said: ") || sinktest.LeakedSecret(got, secret) != "" {
				t.Errorf("%s, then %s, of %q: %q", first, second, text, got)
			}
		}
	}

	for _, plain := range []string{"no customer 4711 in /orders", "canaries, 7f3d and 2a", `{"error":"x \u00e9 %20 &amp;"}`, "aGVsbG8gd29ybGQ="} {
		if got := r.OneLine(plain); got != plain {
			t.Errorf("%q becomes %q", plain, got)
		}
	}

	if got := r.OneLine("cut off: " + secret[:12]); got != "cut off: "+sink.Redacted {
		t.Error(got)
	}
	if shown := fmt.Sprintf("%+v %#v", r, r); strings.Contains(shown, "canary") {
		t.Error(shown)
	}
}

// FuzzRedact: nested escapes do not hide a secret.
func FuzzRedact(f *testing.F) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(sinktest.Escapes())), func(name string) bool {
		return strings.HasPrefix(name, "base64") || strings.HasPrefix(strings.ToLower(name), "hexa")
	})

	f.Add("key=", secret, "&", uint(0), uint(1), uint(2))
	f.Add("%", "0123456789abcdef", "\\u0", uint(5), uint(7), uint(9))
	f.Fuzz(func(t *testing.T, before, key, behind string, a, b, c uint) {
		if len(key) < minSpacedSecretBytes || !visible(key) || strings.ContainsAny(key, `%&\`) || len(before)+len(behind) > 200 || len(key) > 40 {
			t.Skip() // a key may look like an escape of another text
		}
		escapes, text, spread := sinktest.Escapes(), key, false
		for _, i := range []uint{a, b, c} {
			name := names[i%uint(len(names))]
			spread = spread || name == "a line each" || name == "unseen in between"
			text = escapes[name](text)
		}
		if spread && strings.ContainsAny(before, `%&\`) {
			t.Skip() // it may become an escape together with the first characters
		}
		got := New(false, key).OneLine(before + " " + text + " " + behind)
		if strings.Contains(sink.Redacted, key) {
			t.Skip()
		}
		if strings.Contains(got, key) || len(text) >= minSpacedSecretBytes && strings.Contains(got, text) {
			t.Fatalf("%q shows %q", got, key)
		}
	})
}

// TestAddressSecrets: the parts of an address and of a header that may be a key.
func TestAddressSecrets(t *testing.T) {
	for address, want := range map[string][]string{
		"https://h/services/T00A/B00000/xXxXxX": {"/services/T00A/B00000/xXxXxX", "T00A", "B00000", "xXxXxX"},
		"https://h/hooks/orders":                nil,
		"https://h/hook/k3ysecret":              {"/hook/k3ysecret", "k3ysecret"},
		"https://h/hook/qwertzuiopasdf":         {"/hook/qwertzuiopasdf", "qwertzuiopasdf"},
		"https://h/v1/averylongwordwithoutend/": {"/v1/averylongwordwithoutend/", "averylongwordwithoutend"},
		"https://h/a%2Fsecret":                  {"/a/secret", "a/secret"},
		"https://h/":                            nil,
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := PathSecrets(u); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", address, got, want)
		}
	}

	if got := HeaderSecrets("Basic bWU6c2VzYW1l"); !slices.Equal(got, []string{"Basic bWU6c2VzYW1l", "bWU6c2VzYW1l", "me:sesame", "sesame"}) {
		t.Errorf("a header of Basic has %q", got)
	}

	u := &url.URL{RawQuery: "k=a%20key&bare-key&x=1"}
	if got := QuerySecrets(u); !slices.Equal(got, []string{"a%20key", "a key", "bare-key", "bare-key"}) {
		t.Errorf("a query has %q", got)
	}
}

// TestPlainWords: words of a path and of headers stay readable, and so does a word that ends a
// text and begins a secret. Credentials and references are secrets even if they are words.
func TestPlainWords(t *testing.T) {
	for name, want := range map[string][]string{
		"x-team": nil, "x-env": nil, "Authorization": {"sesame"}, "X-Api-Key": {"sesame"}, "Cookie": {"sesame"}, "x-auth-token": {"sesame"},
	} {
		if got := PlainHeaderSecrets(name, "sesame"); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if got := PlainHeaderSecrets("x-team", "a7f3d2"); !slices.Equal(got, []string{"a7f3d2"}) {
		t.Errorf("a key in a header has %q", got)
	}
	for text, want := range map[string]string{"sesame": "no [redacted]", "https://h/hook/sesame": "no [redacted]"} {
		if got := New(false, ReferenceSecrets(text)...).OneLine("no sesame"); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	r := New(false, "/orders/k3ysecret", "orders-7f3d")
	for text, want := range map[string]string{
		"bad order": "bad order", "no /orders": "no /orders", "bad orders-7f": "bad [redacted]", "no /orders/k3y": "no [redacted]",
	} {
		if got := r.OneLine(text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
