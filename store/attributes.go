package store

// Names of attributes with a meaning of their own.
const (
	// AttributeKind is what the row is about, for example the aggregate's type.
	AttributeKind = "kind"
	// AttributeType is the type of the event, for example OrderPaid.
	AttributeType = "type"
	// AttributeTime is when the event happened, as RFC 3339 in UTC.
	AttributeTime = "time"
)

// Attribute is a named value of a row beside its payload.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Attributes are the attributes of a row.
type Attributes []Attribute

// Get returns the value of an attribute.
func (a Attributes) Get(name string) (value string, ok bool) {
	for i := range a {
		if a[i].Name == name {
			return a[i].Value, true
		}
	}
	return "", false
}

// Bytes returns the memory used by the names and values.
func (a Attributes) Bytes() (sum int) {
	for i := range a {
		sum += len(a[i].Name) + len(a[i].Value)
	}
	return sum
}
