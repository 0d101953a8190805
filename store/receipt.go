package store

// Receipt is a value with which a destination answered the delivery of a row, for example the
// offset of the record in Kafka.
type Receipt struct{ Name, Value string }

// RecordColumn is a column that keeps a value of the receipt of the row's delivery.
type RecordColumn struct {
	// Receipt is the name of the value, for example offset.
	Receipt string
	// Column is an integer or a text. It is NULL for a row whose delivery had no such value, and
	// before the delivery.
	Column string
	// Max is the largest value if the value is a whole number from 0 on, and 0 for a text. An
	// integer column must hold it.
	Max int64
}

// Key is the configuration key that names the column.
func (r *RecordColumn) Key() string { return "record." + r.Receipt }

// Text returns the value for the column; ok is false if the receipts have none.
func (r *RecordColumn) Text(receipts []Receipt) (text string, ok bool) {
	for i := range receipts {
		if receipts[i].Name == r.Receipt {
			return receipts[i].Value, true
		}
	}
	return "", false
}

// validateRecord rejects columns for receipts where the relay writes no delivered row.
func (l *Layout) validateRecord(bad *FieldErrors) {
	switch {
	case len(l.Record) == 0:
	case l.State == StateNone:
		bad.Add("record", "needs a state in the table: with state none the relay writes nothing into a row; remove it")
	case l.DeleteDelivered:
		bad.Add("record", "does not apply: layout %s deletes a delivered row, so nothing is left to write into; remove it", l.Name)
	}
	for i := range l.Record {
		r := &l.Record[i]
		switch {
		case r.Receipt == "":
			bad.Add("record", "has column %q without the name of a receipt", r.Column)
		case r.Column == "":
			bad.Add(r.Key(), "is not set; name the column")
		case r.Max < 0:
			bad.Add(r.Key(), "has the largest value %d, must be at least 0", r.Max)
		}
	}
}
