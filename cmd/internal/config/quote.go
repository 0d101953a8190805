package config

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Quote formats a text as a value of a configuration file. It uses JSON's escapes, which
// mean the same in YAML's double quotes, and escapes ${.
func Quote(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(strings.ReplaceAll(text, "${", "$${")); err != nil {
		panic("config: a text that JSON cannot hold: " + err.Error())
	}
	return strings.TrimSpace(b.String())
}
