package ledger

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

var oddTexts = []string{
	"", " ", "a", "A", "a ", "a/b", "~a", "a.b", "ünï ☃ 😀", `'"\`, "\u2028<&>", "\x7f", "\x01", "a\x00", "\xff", "a\xfe", "\xed\xa0\x80", "\ufffd",
	`{"base64":"YQ=="}`, strings.Repeat("k", 64), strings.Repeat("k", 65), strings.Repeat("☃\xff", 10_000),
}

// TestTextsSurvive: texts of any bytes are JSON in ASCII and come back unchanged.
func TestTextsSurvive(t *testing.T) {
	type record struct {
		Text  text
		Group *text
	}
	for _, s := range oddTexts {
		body, err := encode(record{text(s), groupText(store.GroupOf(s))})
		if err != nil || !json.Valid(body) {
			t.Errorf("%.50q: %.200s, %v", s, body, err)
		}
		for _, c := range body {
			if c < ' ' || c > 0x7f {
				t.Fatalf("%.50q: the JSON contains byte %x", s, c)
			}
		}
		var got record
		if err := decode("kind", "key", []byte(`{"later": [1], `+string(body[1:])), &got); err != nil || string(got.Text) != s || groupOf(got.Group) != store.GroupOf(s) {
			t.Errorf("%.50q became %.50q and %.50v, %v", s, got.Text, groupOf(got.Group), err)
		}
	}
	if groupOf(groupText(store.Group{})) != (store.Group{}) {
		t.Error("no group became a group")
	}
}

// TestAttributesSurvive: attributes, which are UTF-8 without U+0000, are JSON in ASCII and come
// back unchanged.
func TestAttributesSurvive(t *testing.T) {
	var all store.Attributes
	for _, s := range oddTexts {
		if utf8.ValidString(s) && !strings.Contains(s, "\x00") {
			all = append(all, store.Attribute{Name: s, Value: s + s})
		}
	}
	body := EncodeAttributes(all)
	if i := strings.IndexFunc(string(body), func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
		t.Errorf("JSON has other characters than ASCII: %.50q", body[i:])
	}
	if got, err := DecodeAttributes(body); err != nil || !slices.Equal(got, all) {
		t.Errorf("%.300q became %.300q, %v", all, got, err)
	}
	if body := EncodeAttributes(nil); body != nil {
		t.Errorf("no attributes became %q", body)
	}
	if got, err := DecodeAttributes(nil); got != nil || err != nil {
		t.Errorf("NULL became %q, %v", got, err)
	}
	if _, err := DecodeAttributes([]byte("{")); err == nil {
		t.Error("broken JSON was read")
	}
}

// TestKeys: names of any bytes have different keys, all short and in ASCII.
func TestKeys(t *testing.T) {
	seen := map[string]string{}
	for _, s := range oddTexts {
		for _, key := range []string{keyOf(s), errorKey(s, 1), errorKey(s, 1<<62), hashKey(s, "x"), hashKey("x", s), hashKey("x" + s)} {
			if other, taken := seen[key]; taken {
				t.Errorf("%.50q and %.50q have the key %s", s, other, key)
			}
			seen[key] = s
			if len(key) > 100 || strings.IndexFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) >= 0 {
				t.Errorf("%.50q has the key %q", s, key)
			}
		}
	}
	if keyOf("before-deploy_2") != "before-deploy_2" {
		t.Errorf("a plain name has the key %s", keyOf("before-deploy_2"))
	}
}
