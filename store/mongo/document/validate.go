package document

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Validate checks a document and all documents in it. bson.Raw.Validate reads no nested document, and the
// functions of this package panic on one that is cut off. A document without bytes is valid.
func Validate(doc bson.Raw) error {
	if doc == nil {
		return nil
	}
	elements, err := doc.Elements()
	if err != nil {
		return err
	}
	for _, e := range elements {
		v := e.Value()
		nested := bson.Raw(nil)
		switch v.Type {
		case bson.TypeEmbeddedDocument:
			nested = v.Document()
		case bson.TypeArray:
			nested = bson.Raw(v.Array())
		case bson.TypeCodeWithScope:
			var ok bool
			if _, nested, ok = v.CodeWithScopeOK(); !ok {
				return fmt.Errorf("%s: code is cut off", e.Key())
			}
		default:
			continue
		}
		if err := Validate(nested); err != nil {
			return fmt.Errorf("%s: %w", e.Key(), err)
		}
	}
	return nil
}
