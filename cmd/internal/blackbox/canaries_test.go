package blackbox

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// canaries are the secrets of a test, by the names that its configurations give them.
type canaries struct {
	t   *testing.T
	dir string
	all map[string]string
}

// canary returns the secret of a name. It has a slash, because JSON and URLs escape it.
func (c *canaries) canary(name string) string {
	sum := sha256.Sum256([]byte(name))
	text := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:15]))
	c.all[name] = text[:14] + "/" + text[14:]
	return c.all[name]
}

// fill puts canaries into a configuration: @NAME@ is one, %NAME% the same in a URL, &NAME& a key
// that signs, and <NAME> a file that has one.
func (c *canaries) fill(text string) string {
	replace := func(pattern string, by func(name string) string) {
		text = regexp.MustCompile(pattern).ReplaceAllStringFunc(text, func(found string) string { return by(found[1 : len(found)-1]) })
	}
	replace(`@[a-z.-]+@`, c.canary)
	replace(`%[a-z.-]+%`, func(name string) string { return url.PathEscape(c.canary(name)) })
	replace(`&[a-z.-]+&`, func(name string) string {
		c.all[name] = base64.StdEncoding.EncodeToString([]byte(c.canary(name)))
		return "whsec_" + c.all[name]
	})
	replace(`<[a-z.-]+>`, func(name string) string {
		file := filepath.Join(c.dir, name)
		if err := os.WriteFile(file, []byte("-----BEGIN NOTHING-----\n"+c.canary(name)+"\n"), 0o600); err != nil {
			c.t.Fatal(err)
		}
		return file
	})
	return text
}

// holds reports whether the value of a key has a canary, or names a file that has one.
func (c *canaries) holds(value string) bool {
	for name, secret := range c.all {
		if strings.Contains(value, secret) || strings.Contains(value, url.PathEscape(secret)) || value == filepath.Join(c.dir, name) {
			return true
		}
	}
	return false
}

// expectHidden checks that a text shows no canary.
func (c *canaries) expectHidden(what, text string) {
	c.t.Helper()
	if name, seen := c.shown(text); name != "" {
		c.t.Errorf("%s shows %s: …%s…", what, name, seen)
	}
}

// shown returns the name of a canary that a text shows, whole or in part, whatever escapes it has.
func (c *canaries) shown(text string) (name, seen string) {
	const part = 10
	for _, view := range views(text) {
		for name, secret := range c.all {
			for _, piece := range []string{secret[:part], secret[len(secret)/2-part/2:][:part], secret[len(secret)-part:]} {
				if at := strings.Index(view, piece); at >= 0 {
					return name, view[max(0, at-200):min(len(view), at+100)]
				}
			}
		}
	}
	return "", ""
}

// A canary is found in every form that a receiver or an error may give it.
func TestCanariesAreFound(t *testing.T) {
	t.Parallel()
	c := &canaries{t: t, dir: t.TempDir(), all: map[string]string{}}
	secret := c.canary("it")
	for name, escape := range sinktest.Escapes() {
		if name == "a line each" || name == "unseen in between" || name == "HTML by code" || name == "base64 of a header" {
			continue // no form of the program's own; the suites of the sinks have them
		}
		if found, _ := c.shown("refused: " + escape(secret) + " is wrong"); found != "it" {
			t.Errorf("not found: %s", name)
		}
	}
	if found, seen := c.shown("refused: " + secret[:8] + "…"); found != "" {
		t.Errorf("found %s in %s", found, seen)
	}
}

// views returns a text without one layer of escapes, or what it decodes to.
func views(text string) []string {
	byCode := regexp.MustCompile(`(?i)(?:%|\\x|\\u00|&#x)([0-9a-f]{2});?`)
	unescaped := byCode.ReplaceAllStringFunc(text, func(found string) string {
		n, _ := strconv.ParseUint(byCode.FindStringSubmatch(found)[1], 16, 8) // two hexadecimal digits
		return string([]byte{byte(n)})
	})
	var decoded strings.Builder
	for _, run := range regexp.MustCompile(`[A-Za-z0-9+/_-]{12,}`).FindAllString(text, -1) {
		run = strings.NewReplacer("-", "+", "_", "/").Replace(run)
		for from := range 4 {
			plain := make([]byte, len(run))
			n, _ := base64.RawStdEncoding.Decode(plain, []byte(run[from:])) // as far as it is base64
			decoded.Write(append(plain[:n], '\n'))
		}
		plain, _ := hex.DecodeString(run[:len(run)&^1])
		decoded.Write(append(plain, '\n'))
	}
	lower := strings.ToLower(text)
	return []string{text, lower, strings.ReplaceAll(unescaped, `\/`, "/"), decoded.String()}
}

// without returns the secret keys of a schema that no value holds: those marked writeOnly, and files
// of keys and credentials. values are all values of the schema in a configuration. With applicable,
// keys that the configuration does not have are left out.
func without(schema map[string]any, path string, values []any, applicable bool, holds func(string) bool) (missing []string) {
	name := path[strings.LastIndex(path, ".")+1:]
	description, _ := schema["description"].(string)
	if name == "api-base-url" || strings.HasPrefix(description, "Another name for ") {
		return nil // an api-base-url may have no user and no query
	}
	if schema["writeOnly"] == true || slices.Contains([]string{"key-file", "creds-file", "nkey-file"}, name) {
		set := slices.ContainsFunc(values, func(v any) bool { text, ok := v.(string); return ok && holds(text) })
		if set || applicable && len(values) == 0 {
			return nil
		}
		return []string{path}
	}
	deeper := func(of any, path string, values []any) {
		if below, ok := of.(map[string]any); ok {
			missing = append(missing, without(below, path, values, applicable, holds)...)
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	for key, of := range properties {
		var below []any
		for _, v := range values {
			section, _ := v.(map[string]any)
			if v, ok := section[key]; ok {
				below = append(below, v)
			}
		}
		deeper(of, path+"."+key, below)
	}
	var entries []any
	for _, v := range values {
		switch v := v.(type) {
		case []any:
			entries = append(entries, v...)
		case map[string]any:
			entries = slices.AppendSeq(entries, maps.Values(v))
		}
	}
	deeper(schema["items"], path+"[]", entries)
	deeper(schema["additionalProperties"], path+".*", entries)
	for _, list := range []string{"allOf", "anyOf"} {
		variants, _ := schema[list].([]any)
		for _, v := range variants {
			variant := v.(map[string]any)
			if then, ok := variant["then"]; ok {
				variant = then.(map[string]any)
			}
			deeper(variant, path, values)
		}
	}
	return missing
}

// expectComplete checks that the configurations have a canary in every secret key of the schema, and
// those of each type of sink in every key that applies to the type.
func (c *canaries) expectComplete(configs ...string) {
	c.t.Helper()
	out, _, _ := command(c.t, nil, "config", "schema")
	var schema map[string]any
	if err := json.Unmarshal([]byte(out), &schema); err != nil {
		c.t.Fatal(err)
	}
	var written []any
	printed := map[string][]any{} // sinks by type
	for _, text := range configs {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			c.t.Fatal(err)
		}
		written = append(written, v)
		out, stderr, _ := command(c.t, nil, "config", "check", "--json", "-c", configFile(c.t, text))
		var checked struct {
			Sinks map[string]map[string]any `json:"sinks"`
		}
		if err := json.Unmarshal([]byte(out), &checked); err != nil || stderr != "" {
			c.t.Fatalf("config check --json: %v\n%s\n%s", err, stderr, out)
		}
		for _, s := range checked.Sinks {
			of := fmt.Sprint(s["type"])
			printed[of] = append(printed[of], any(s))
		}
	}
	for _, key := range without(schema, "", written, false, c.holds) {
		c.t.Errorf("%s is a secret without a canary; add one to the configuration of this test", key[1:])
	}
	sinks := schema["properties"].(map[string]any)["sinks"].(map[string]any)["additionalProperties"].(map[string]any)
	for of, all := range printed {
		for _, key := range without(sinks, "", all, true, func(text string) bool { return text != "" }) {
			c.t.Errorf("%s of a sink with type: %s is a secret without a canary; add one to the configuration of this test", key[1:], of)
		}
	}
	if len(printed) < 7 {
		c.t.Errorf("the configurations have %d types of sinks", len(printed))
	}
}

// secretScalar matches a quoted value with a canary.
func (c *canaries) secretScalars(text string, by func(value string) string) string {
	return regexp.MustCompile(`'[^'\n]*'`).ReplaceAllStringFunc(text, func(found string) string {
		if value := found[1 : len(found)-1]; c.holds(value) {
			return by(value)
		}
		return found
	})
}

// basicOf returns the credentials of HTTP Basic.
func basicOf(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}
