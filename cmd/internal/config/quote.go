package config

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Quote writes a text as a value of a configuration file: in YAML's double quotes, in
// which everything that JSON writes means the same, with ${ written so that it is no
// reference.
func Quote(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(strings.ReplaceAll(text, "${", "$${")); err != nil {
		panic("config: a text that JSON cannot hold: " + err.Error())
	}
	return strings.TrimSpace(b.String())
}
