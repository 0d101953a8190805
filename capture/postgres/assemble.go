package postgres

import (
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
)

// assembler turns pgoutput messages into batches. It has no connection: bytes in, batches
// out.
type assembler struct {
	tables     *tables
	relations  map[uint32]*relation // nil if not an outbox
	after      pglogrepl.LSN        // transactions that end at or before it are dropped
	until      pglogrepl.LSN        // the run ends at a transaction whose commit record begins at or after it
	messages   map[string]*messageBox
	markPrefix string

	watch *watch        // set: the messages are those of test_decoding
	at    pglogrepl.LSN // of the current message

	open       bool
	skip       bool
	reachedEnd bool // until was reached
	tx         logsource.Transaction
	row        row // the current one
}

func newAssembler(t *tables, messages map[string]*messageBox, name string, maxRows, maxBytes int) *assembler {
	return &assembler{
		tables: t, messages: messages, relations: map[uint32]*relation{}, markPrefix: name + markSuffix,
		tx: logsource.NewTransaction(maxRows, maxBytes),
	}
}

// message handles one message. ready is true if it completes a batch.
func (a *assembler) message(wal []byte) (b capture.Batch, ready bool, err error) {
	if len(wal) == 0 {
		return b, false, fmt.Errorf("empty message of the output plugin")
	}
	if a.watch != nil {
		return a.textMessage(wal)
	}

	body := wal[1:]
	switch wal[0] {
	case msgBegin:
		return b, false, a.begin(body)
	case msgCommit:
		return a.commit(body)
	case msgRelation:
		return b, false, a.relation(body)
	case msgInsert:
		return a.insert(body)
	case msgMessage:
		return a.logicalMessage(body)
	case msgType:
		return b, false, a.typeMessage(body)
	case msgOrigin, msgTruncate, msgUpdate, msgDelete:
		return b, false, nil // not inserts into an outbox
	}

	return b, false, fmt.Errorf("pgoutput: unknown message type %q", wal[0])
}

func (a *assembler) begin(body []byte) error {
	m, err := parseBegin(body)
	if err != nil {
		return err
	}
	if a.open {
		return fmt.Errorf("pgoutput: Begin message inside a transaction")
	}
	if a.until != 0 && m.commit >= a.until {
		a.reachedEnd = true
		return nil
	}

	// Positions are ends of records, so a commit record that begins before a position
	// also ends at or before it.
	a.open, a.skip = true, m.commit < a.after
	a.tx.ID, a.tx.Committed = store.Txn(m.xid), m.committed
	return nil
}

func (a *assembler) commit(body []byte) (capture.Batch, bool, error) {
	end, err := parseCommit(body)
	if err != nil {
		return capture.Batch{}, false, err
	}
	if !a.open {
		return capture.Batch{}, false, fmt.Errorf("pgoutput: Commit message outside a transaction")
	}
	b := a.tx.End()
	b.Position = formatLSN(end)
	ready := !a.skip
	a.open, a.skip = false, false
	return b, ready, nil
}

func (a *assembler) relation(body []byte) error {
	m, err := parseRelation(body)
	if err != nil {
		return err
	}
	rel, err := a.tables.relation(&m)
	if err != nil {
		return err
	}
	a.relations[m.oid] = rel
	return nil
}

// typeMessage records the types over bytea. The server sends the base type of a domain
// before each relation that uses the domain.
func (a *assembler) typeMessage(body []byte) error {
	m, err := parseType(body)
	if err == nil && m.schema == "" && m.name == "bytea" {
		a.tables.bytea[m.oid] = true
	}
	return err
}

func (a *assembler) insert(body []byte) (part capture.Batch, ready bool, err error) {
	oid, err := parseInsert(body, &a.row)
	if err != nil {
		return part, false, err
	}
	if !a.open {
		return part, false, fmt.Errorf("pgoutput: Insert message outside a transaction")
	}

	rel, known := a.relations[oid]
	if !known {
		return part, false, fmt.Errorf("pgoutput: row of relation %d without a Relation message", oid)
	}
	if rel == nil || a.skip {
		return part, false, nil
	}
	values := a.row.values
	if len(values) != len(rel.columns) {
		return part, false, fmt.Errorf("pgoutput: row of %s.%s has %d columns, its Relation message has %d",
			rel.schema, rel.name, len(values), len(rel.columns))
	}

	size := 0
	for _, v := range values {
		size += len(v)
	}
	a.row.relation = rel
	part, ready, err = a.tx.Add(&a.row, rel.outboxes, size*len(rel.outboxes)) // each outbox has its own copy
	clear(values)                                                             // they alias the message, and no other may come for a long time
	return part, ready, err
}

// logicalMessage collects the markers and the messages of outboxes. Messages of all prefixes
// arrive, also those of other programs. A message outside a transaction is no row: it is in the
// WAL whether the transaction of the service commits or not.
func (a *assembler) logicalMessage(body []byte) (part capture.Batch, ready bool, err error) {
	m, err := parseMessage(body)
	if err != nil {
		return part, false, err
	}
	box, isMark := a.messages[string(m.prefix)], string(m.prefix) == a.markPrefix
	if !m.transactional || box == nil && !isMark {
		return part, false, nil
	}
	if !a.open {
		return part, false, fmt.Errorf("pgoutput: transactional message outside a transaction")
	}
	switch {
	case a.skip:
	case isMark:
		a.tx.Mark(string(m.content))
	default:
		row, columns := box.read(m.lsn, m.content)
		return a.tx.Add(row, columns, len(m.content))
	}
	return part, false, nil
}

func formatLSN(lsn pglogrepl.LSN) store.Position { return store.Position(lsn.String()) }
