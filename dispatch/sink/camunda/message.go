package camunda

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

// message is a message of Camunda. Its texts are valid UTF-8, which both APIs require.
type message struct {
	name, correlationKey, tenantID string

	rowID     string // with the prefix, the same for a live row and a replayed one
	id        string // the messageId
	replay    string
	variables []byte // a JSON object, nil for none
}

// encoder makes the messages of rows.
type encoder struct {
	payload                        Payload
	name, correlationKey, tenantID template.Template
	variables                      map[string]template.Template
	idPrefix                       string
}

// newEncoder returns the encoder of a valid configuration with its defaults.
func newEncoder(c *Config) encoder {
	e := encoder{
		payload: c.Payload, idPrefix: c.IDPrefix, variables: map[string]template.Template{},
		name: template.MustParse(c.Name), correlationKey: template.MustParse(c.CorrelationKey), tenantID: template.MustParse(c.TenantID),
	}
	for name, value := range c.Variables {
		e.variables[name] = template.MustParse(value)
	}
	return e
}

// encode returns the message of a row. reason is set if the row can never be sent.
func (e *encoder) encode(m *sink.Message) (msg message, reason string) {
	msg.replay = m.Replay
	if msg.rowID = text(event.ID(e.idPrefix, m.ID)); msg.rowID == "" {
		return msg, "row has an empty id, which Camunda needs to drop repetitions; set id-prefix"
	}
	if msg.id = msg.rowID; m.Replay != "" {
		msg.id += "/" + text(m.Replay)
	}
	var missing string
	if msg.tenantID, missing = e.tenantID.Text(m, event.AsIs); missing != "" {
		return msg, "row has no " + missing + ", which tenant-id needs"
	}
	if e.payload == PayloadMessage {
		reason = msg.readPayload(m.Payload)
	} else {
		reason = e.fromRow(&msg, m)
	}
	if reason == "" {
		reason = e.addVariables(&msg, m)
	}
	if reason != "" {
		return msg, reason
	}
	for key, value := range map[string]string{"name": msg.name, "correlation key": msg.correlationKey, "tenant": msg.tenantID} {
		if !utf8.ValidString(value) {
			return msg, key + " of the message is not UTF-8"
		}
	}
	if strings.TrimSpace(msg.name) == "" {
		return msg, "name of the message is empty"
	}
	return msg, ""
}

// text returns an id in UTF-8. Another one is percent-encoded.
func text(id string) string {
	if utf8.ValidString(id) {
		return id
	}
	return ascii.PercentEncode(id, "")
}

// fromRow takes the name and the key from the row, and the variables from its payload.
func (e *encoder) fromRow(msg *message, m *sink.Message) (reason string) {
	var missing string
	if msg.name, missing = e.name.Text(m, event.AsIs); missing != "" {
		return "row has no " + missing + ", which name needs"
	}
	msg.correlationKey, missing = e.correlationKey.Text(m, event.AsIs)
	if missing != "" && m.Group.Valid { // a row without a group has no key
		return "row has no " + missing + ", which correlation-key needs"
	}
	if len(m.Payload) > 0 {
		msg.variables = m.Payload
	}
	return checkObject(msg.variables, "payload")
}

// readPayload takes everything from a payload.
func (msg *message) readPayload(payload []byte) (reason string) {
	if reason := event.NotJSON(payload); reason != "" {
		return reason
	}
	var of struct {
		Name           string          `json:"name"`
		CorrelationKey string          `json:"correlationKey"`
		Variables      json.RawMessage `json:"variables"`
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields() // a timeToLive that has no effect, for example
	if err := d.Decode(&of); err != nil {
		return "payload is no object with name, correlationKey and variables alone: " + strings.TrimPrefix(err.Error(), "json: ")
	}
	msg.name, msg.correlationKey = of.Name, of.CorrelationKey
	if len(of.Variables) > 0 && string(of.Variables) != "null" {
		msg.variables = of.Variables
	}
	return checkObject(msg.variables, "variables of the payload")
}

// checkObject returns the reason why a text cannot be variables, "" if it can.
func checkObject(variables []byte, what string) (reason string) {
	if variables == nil {
		return ""
	}
	if reason := event.NotJSON(variables); reason != "" {
		return reason
	}
	if bytes.TrimLeft(variables, " \t\r\n")[0] != '{' {
		return what + " is no JSON object, as variables must be"
	}
	return ""
}

// addVariables adds the variables of the configuration. Without any, the payload stays byte for
// byte.
func (e *encoder) addVariables(msg *message, m *sink.Message) (reason string) {
	added := map[string]any{}
	for name := range e.variables {
		t := e.variables[name]
		if value, missing := t.Text(m, event.AsIs); missing == "" {
			added[name] = text(value)
		}
	}
	if len(added) == 0 {
		return ""
	}
	all := map[string]json.RawMessage{}
	if msg.variables != nil {
		if err := json.Unmarshal(msg.variables, &all); err != nil {
			return "payload is not JSON" // not reached: it was checked
		}
	}
	for name, value := range added {
		all[name] = marshal(value)
	}
	msg.variables = marshal(all)
	return ""
}

// json returns the body of POST /v2/messages/publication (MessagePublicationRequest of Camunda's
// OpenAPI document).
func (msg *message) json(timeToLive time.Duration) []byte {
	body := marshal(struct {
		Name           string `json:"name"`
		CorrelationKey string `json:"correlationKey,omitempty"`
		TimeToLive     int64  `json:"timeToLive"`
		MessageID      string `json:"messageId"`
		TenantID       string `json:"tenantId,omitempty"`
	}{msg.name, msg.correlationKey, timeToLive.Milliseconds(), msg.id, msg.tenantID})
	if msg.variables == nil {
		return body
	}
	body = append(body[:len(body)-1], `,"variables":`...)
	return append(append(body, msg.variables...), '}')
}

// marshal returns a value as JSON.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("camunda: %v", err)) // not reached: texts and valid JSON
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
