package webhook

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_c2x1aWNlYm94LXNlY29uZC1zZWNyZXQtb2YtMzItYnk="
)

func keysOf(tb testing.TB, secrets ...string) [][]byte {
	tb.Helper()
	var keys [][]byte
	for _, s := range secrets {
		key, err := parseSecret(s)
		if err != nil {
			tb.Fatal(err)
		}
		keys = append(keys, key)
	}
	return keys
}

// TestSign: the first case is the test vector that the reference libraries of
// Standard Webhooks share. The others were computed with Python's hmac.
func TestSign(t *testing.T) {
	const id, at, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`
	const a, b = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "v1,IBRd9YrBA9YJkDCP94xhGhbCRA3e6G0IYhP79JUQOc8="
	for name, c := range map[string]struct {
		secrets      []string
		id, at, body string
		want         string
	}{
		"published": {[]string{secretA}, id, at, body, a},
		"32 bytes":  {[]string{secretB}, id, at, body, b},
		"rotation":  {[]string{secretB, secretA}, id, at, body, b + " " + a},
		"no body":   {[]string{secretB}, "a%2Eb", "1", "", "v1,aLdc3APKQXX/Ve2uZ7Ad1wVgfMbJ2kzOF9dX/hKlUPM="},
		"none":      {nil, id, at, body, ""},
	} {
		if got := sign(keysOf(t, c.secrets...), c.id, c.at, []byte(c.body)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestSignatureOfThePage: the values in deploy/delivery.md, with which receivers test their
// verification, are those that the sink sends.
func TestSignatureOfThePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "delivery.md"))
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `?([a-z-]+)`? \\| `([^`]+)` \\|$").FindAllStringSubmatch(string(page), -1) {
		value[m[1]] = m[2]
	}
	want := value["webhook-signature"]
	if got := sign(keysOf(t, value["secret"]), value["webhook-id"], value["webhook-timestamp"], []byte(value["body"])); want == "" || got != want {
		t.Errorf("got signature %s of %q, want %q", got, value, want)
	}
}

func TestParseSecret(t *testing.T) {
	encode := func(n int) string {
		return secretPrefix + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n)))
	}

	for secret, want := range map[string]string{ // part of the error; "" for none
		secretA:                            "",
		encode(24):                         "",
		encode(64):                         "",
		encode(23):                         "decodes to 23 bytes, must be 24 to 64",
		encode(65):                         "decodes to 65 bytes",
		"":                                 "is empty",
		"whsec_":                           "decodes to 0 bytes",
		secretA[6:]:                        "does not start with whsec_",
		"WHSEC_" + secretA[6:]:             "does not start with whsec_",
		secretA + "\n":                     "trailing newline",
		secretA[:20] + "\n" + secretA[20:]: "trailing newline", // base64 would skip it
		strings.TrimRight(secretB, "="):    "is not base64",
		secretA[:20] + "-_" + secretA[22:]: "is not base64", // the URL alphabet
		secretA[:37]:                       "is not base64",
	} {
		key, err := parseSecret(secret)
		switch {
		case want == "" && (err != nil || secretPrefix+base64.StdEncoding.EncodeToString(key) != secret):
			t.Errorf("%q: %v", secret, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", secret, err, want)
		}
	}
}

// FuzzParseSecret: an accepted secret is a key of a valid length, and the error for
// any other does not show it.
func FuzzParseSecret(f *testing.F) {
	for _, s := range []string{
		secretA, secretB, "whsec_", "", "whsec_AAAA", "whsk_" + secretA[6:],
		secretA + "\n", secretA[:20] + "\r\n" + secretA[20:], secretA + "====", "whsec_" + strings.Repeat("A", 88),
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseSecret(s)
		if err != nil {
			for i := 0; i+12 <= len(s); i++ {
				if strings.Contains(err.Error(), s[i:i+12]) {
					t.Fatalf("%q: the error shows it: %v", s, err)
				}
			}
			return
		}
		if len(key) < 24 || len(key) > 64 {
			t.Fatalf("%q decodes to %d bytes", s, len(key))
		}
		// A text for the same key differs in unused bits at most.
		text := secretPrefix + base64.StdEncoding.EncodeToString(key)
		if len(text) != len(s) || text[:len(text)-4] != s[:len(s)-4] {
			t.Fatalf("%q stands for the key of %q", s, text)
		}
	})
}
