package sink

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// ReplayHeader marks a request or a message of a replay, so the receiver may have had its rows
// before. Its value is the id of the replay.
const ReplayHeader = "Sluicebox-Replay"

// ChainHeader lets a receiver notice that a row of a message group is missing; see
// dispatch/internal/chain. It is never part of a body, because that is the same for each attempt.
const ChainHeader = "Sluicebox-Chain"

// Connection are the settings that the program hands to every sink. The Config of a sink embeds
// it.
type Connection struct {
	// CAFile is a PEM file of authorities to trust instead of the system's.
	CAFile string

	// CertFile and KeyFile are PEM files of the client's certificate, followed by those of
	// its issuers, and of its key. Empty sends none.
	CertFile, KeyFile string

	// RequestTimeout bounds a request from the dial to its answer. 0 stands for 30 s.
	RequestTimeout time.Duration

	// ErrorDetail is how much of a failure the detail shows.
	ErrorDetail ErrorDetail

	// Senders is the number of requests in flight at most, max-concurrent-groups.
	Senders int

	// Client is the name and the version of the program, for example "sluicebox/1.2.3". It
	// is for client ids and the User-Agent.
	Client string

	// MaxBackoff is the longest pause before a retry. A probe may compare it with the time in
	// which the destination drops duplicates. 0 leaves that out.
	MaxBackoff time.Duration

	// Receipts asks for the receipts of delivered messages, because an outbox records them; see
	// Outcome. A sink may return none otherwise.
	Receipts bool

	// References are the texts of addresses and headers that come from a file or a variable.
	// No detail shows them, even if they are plain words.
	References []Secret
}

// Connect takes over the settings.
func (c *Connection) Connect(to Connection) { *c = to }

// Check reports the settings that contradict each other, by their keys.
func (c *Connection) Check(bad *store.FieldErrors) {
	if c.RequestTimeout < 0 {
		bad.Add("request-timeout", "is %s, must be above 0", c.RequestTimeout)
	}
	bad.AddErr(c.ErrorDetail.Check())
	if c.KeyFile != "" && c.CertFile == "" {
		bad.Add("cert-file", "is not set; key-file needs it")
	}
	if c.CertFile != "" && c.KeyFile == "" {
		bad.Add("key-file", "is not set; cert-file needs it")
	}
}

// Field is a value of the row that a configuration sends.
type Field struct {
	Key       string // the configuration key, for example headers.X-Tenant
	Attribute string // the attribute, "" for the message group

	// Required: a row without the value is not sent. Otherwise only the value is left out.
	Required bool
}

// String returns the field as a template has it.
func (f Field) String() string {
	switch f.Attribute {
	case "":
		return "{group}"
	case store.AttributeKind, store.AttributeType:
		return "{" + f.Attribute + "}"
	}
	return "{attr." + f.Attribute + "}"
}
