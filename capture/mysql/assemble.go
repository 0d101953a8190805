package mysql

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zstd"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
)

// assembler turns the events of a binlog into batches. It has no connection: bytes in,
// batches out.
type assembler struct {
	flavour      flavour
	tables       *tables
	name         string // the relay's name; only its markers are kept
	snapshotMark string // marker of a snapshot to keep as well
	// emit sends a batch.
	emit func(b capture.Batch) error
	// refresh reads the columns of a table that the binlog does not name.
	refresh  func(t *table) error
	unlogged unloggedWrites
	watching bool      // changes are read, not new rows
	since    time.Time // rows that committed before it are left out; zero: none are

	last         binlogPosition // everything up to here was read, and emitted except positions without rows
	idle         idleState
	format       []byte // the file's FORMAT_DESCRIPTION event
	outer        *decoder
	inner        *decoder // for the content of compressed transactions; created on demand
	decompressor *zstd.Decoder
	mapped       map[uint64]*layout // by table id, until the statement ends; other tables than outboxes and markers are missing
	layouts      map[*table]*layouts
	marker       *layout // stands for the markers' table, whose columns are known

	open     bool // inside a transaction
	sawBegin bool // and after its BEGIN
	id       gtid
	foreign  bool // it wrote to a table that no relay owns
	tx       logsource.Transaction
	row      row // the current one
}

// idleState describes the transactions since the last batch.
type idleState struct {
	foreign bool // other clients wrote some of them, not only the relay
	since   time.Time
}

// layouts maps the bytes of a table's TABLE_MAP events to layouts, because most
// statements repeat the previous event.
type layouts map[string]*layout

// maxLayouts limits the number of layouts per table.
const maxLayouts = 100

func newAssembler(sv *server, cfg *Config, from binlogPosition) *assembler {
	return &assembler{
		flavour: sv.flavour, tables: sv.tables, name: cfg.Name,
		last: from, mapped: map[uint64]*layout{}, layouts: map[*table]*layouts{}, marker: &layout{},
		tx: logsource.NewTransaction(cfg.MaxBatchRows, cfg.MaxBatchBytes),
	}
}

// close releases the memory of the decompressor.
func (a *assembler) close() {
	if a.decompressor != nil {
		a.decompressor.Close()
	}
}

// event processes one event that ends at offset end of the current file.
func (a *assembler) event(kind replication.EventType, raw []byte, end uint32) error {
	switch kind {
	case replication.FORMAT_DESCRIPTION_EVENT:
		if err := a.last.checkCreated(a.flavour, raw); err != nil {
			return err
		}
		return a.formatDescription(raw)
	case replication.ROTATE_EVENT:
		return a.rotate(raw)
	case replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2:
		return a.unlogged.check()
	}

	if err := a.unlogged.check(); err != nil {
		return err
	}
	if a.outer == nil {
		return fmt.Errorf("event %s before the format description", kind)
	}

	switch kind {
	case replication.GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT, replication.MARIADB_GTID_EVENT:
		return a.begin(kind, raw)
	case replication.ANONYMOUS_GTID_EVENT:
		return fault.NoStream("the binlog has a transaction without a GTID: gtid_mode was not ON", "set gtid_mode to ON; the relay's next start lists the statements")
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return a.compressedTransaction(raw, end)
	}

	return a.transactionEvent(a.outer, kind, raw, end)
}

// transactionEvent processes one event of a transaction.
func (a *assembler) transactionEvent(d *decoder, kind replication.EventType, raw []byte, end uint32) error {
	switch kind {
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return a.query(d, raw, end)
	case replication.TABLE_MAP_EVENT:
		return a.tableMap(d, raw)
	case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2, replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1,
		replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1,
		replication.DELETE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv2, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1,
		replication.PARTIAL_UPDATE_ROWS_EVENT:
		return a.readRows(d, kind, raw)
	case replication.XID_EVENT, replication.XA_PREPARE_LOG_EVENT:
		// The binlog holds the rows of an XA transaction at its PREPARE, and does not
		// repeat them at its COMMIT.
		return a.end(end)
	case replication.INCIDENT_EVENT:
		return fault.Lostf("server logged an incident after %s: transactions are missing from its binlog", a.last.format())
	case replication.EXECUTE_LOAD_QUERY_EVENT:
		return a.statement("", append([]byte("LOAD "), raw...))
	case replication.STOP_EVENT, replication.ROWS_QUERY_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.TRANSACTION_CONTEXT_EVENT,
		replication.VIEW_CHANGE_EVENT, replication.IGNORABLE_EVENT, replication.INTVAR_EVENT, replication.RAND_EVENT, replication.USER_VAR_EVENT,
		replication.BEGIN_LOAD_QUERY_EVENT, replication.APPEND_BLOCK_EVENT, replication.MARIADB_ANNOTATE_ROWS_EVENT,
		replication.MARIADB_BINLOG_CHECKPOINT_EVENT, replication.MARIADB_GTID_LIST_EVENT, replication.MARIADB_START_ENCRYPTION_EVENT:
		return nil
	}

	const flagsAt = 17
	if len(raw) >= headerSize && uint16(raw[flagsAt])&replication.LOG_EVENT_IGNORABLE_F != 0 {
		return nil
	}

	// An unknown event may contain rows.
	return fmt.Errorf("unknown event type %d (%s)", byte(kind), kind)
}

func (a *assembler) formatDescription(raw []byte) (err error) {
	a.format, a.inner = raw, nil
	a.outer, err = newDecoder(a.flavour, raw)
	return err
}

func (a *assembler) rotate(raw []byte) error {
	file, err := nextFile(raw, a.outer != nil && a.checksums())
	if err == nil {
		a.last.rotate(file)
	}
	return err
}

// checksums reports whether the file's events end with a checksum.
func (a *assembler) checksums() bool {
	return a.format[len(a.format)-replication.BinlogChecksumLength-1] == byte(replication.BINLOG_CHECKSUM_ALG_CRC32)
}

func (a *assembler) begin(kind replication.EventType, raw []byte) error {
	if a.open {
		return fmt.Errorf("transaction starts inside another one, after %s", a.last.format())
	}
	e, err := a.outer.events.Parse(raw)
	if err != nil {
		return err
	}

	a.open, a.sawBegin, a.foreign = true, false, false
	a.tx.Committed = time.Unix(int64(e.Header.Timestamp), 0)
	if a.watching {
		a.beginChanges()
	}
	a.id = gtid{}
	switch g := e.Event.(type) {
	case *replication.MariadbGTIDEvent:
		a.id.maria = g.GTID
		a.sawBegin = !g.IsStandalone() // a standalone transaction has no BEGIN
	case *replication.GTIDEvent:
		return a.setGTID(g)
	case *replication.GtidTaggedLogEvent:
		return a.setGTID(&g.GTIDEvent)
	default:
		return fmt.Errorf("event of type %s decoded as %T", kind, g)
	}

	return nil
}

func (a *assembler) setGTID(g *replication.GTIDEvent) error {
	if len(g.SID) != len(a.id.server) {
		return errTruncated
	}
	copy(a.id.server[:], g.SID)
	a.id.tag, a.id.number = g.Tag, g.GNO
	if at := g.ImmediateCommitTime(); !at.IsZero() {
		a.tx.Committed = at // to the microsecond
	}
	return nil
}

func (a *assembler) compressedTransaction(raw []byte, end uint32) error {
	if a.checksums() && len(raw) > replication.BinlogChecksumLength {
		raw = raw[:len(raw)-replication.BinlogChecksumLength]
	}
	var err error
	if a.decompressor == nil {
		if a.decompressor, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxDecompressed)); err != nil {
			return err
		}
	}

	if a.inner == nil {
		if a.inner, err = newDecoder(a.flavour, withoutChecksums(a.format)); err != nil {
			return err
		}
	}

	unpacked, err := decompress(a.decompressor, raw)
	if err != nil {
		return fmt.Errorf("decompress transaction: %w", err)
	}

	return eachEvent(unpacked, func(raw []byte) error {
		const kindAt = 4
		return a.transactionEvent(a.inner, replication.EventType(raw[kindAt]), raw, end)
	})
}

// end ends a transaction and moves the position behind it.
func (a *assembler) end(at uint32) error {
	if !a.open {
		return fmt.Errorf("transaction ends without a start")
	}
	addGTID(a.last.set, &a.id)
	a.last.at = uint64(at)
	a.open, a.sawBegin = false, false
	b := a.tx.End()
	if changes, ok := a.tx.TakeChanges(false); ok {
		b.Changes = changes.Changes
	}

	if len(b.Items) == 0 && len(b.Changes) == 0 && len(b.Marks) == 0 {
		a.idle.foreign = a.idle.foreign || a.foreign
		if a.idle.since.IsZero() {
			a.idle.since = a.tx.ReceivedAt
		}
		return nil
	}

	a.idle = idleState{}
	b.Position = a.last.format()
	return a.emit(b)
}

// tableMap maps a table id to its table. It does not decode events of tables that are no
// outbox.
func (a *assembler) tableMap(d *decoder, raw []byte) error {
	id, _, err := tableIDOf(raw)
	if err != nil {
		return err
	}

	key, rest, err := tableMapKey(raw)
	if err != nil {
		return err
	}

	if a.tables.foldCase {
		key = foldKey(key)
	}
	if d == a.outer && a.checksums() && len(rest) > replication.BinlogChecksumLength {
		rest = rest[:len(rest)-replication.BinlogChecksumLength] // checksums differ between equal events
	}

	t, outbox := a.tables.byKey[string(key)]
	marks := string(key) == a.tables.markerKey
	if !outbox && !marks || outbox && a.tooEarly() {
		a.foreign = a.foreign || !isOwnTable(key)
		delete(a.mapped, id)
		return nil
	}

	l := a.marker
	if outbox {
		if l, err = a.layoutOf(d, t, raw, rest); err != nil {
			return err
		}
		a.foreign = true
	}

	if _, err := d.events.Parse(raw); err != nil {
		return err
	}
	a.mapped[id] = l
	return nil
}

// tooEarly reports whether the transaction committed before the rows that are read. Its rows may be older
// than a change of their table, and could not be read then. Some commit times have whole seconds.
func (a *assembler) tooEarly() bool { return a.tx.Committed.Add(time.Second).Before(a.since) }

// layoutOf returns the layout of a TABLE_MAP event, usually a cached one.
func (a *assembler) layoutOf(d *decoder, t *table, raw, rest []byte) (*layout, error) {
	known := a.layouts[t]
	if known == nil || len(*known) >= maxLayouts {
		known = &layouts{}
		a.layouts[t] = known
	}

	l := (*known)[string(rest)]
	if l != nil && (l.named || !t.stale) {
		return l, nil
	}

	e, err := d.maps.Parse(raw)
	if err != nil {
		return nil, err
	}

	m, ok := e.Event.(*replication.TableMapEvent)
	if !ok {
		return nil, fmt.Errorf("TABLE_MAP event decoded as %T", e.Event)
	}

	if len(m.ColumnName) == 0 && t.stale {
		*known = layouts{}
		if err := a.refresh(t); err != nil {
			return nil, &fault.RowError{Schema: t.schema, Table: t.name, Err: err}
		}
	}

	if l, err = newLayout(t, a.tables.charsets, m); err == nil && a.watching {
		l.changes, err = l.changeColumns()
	}
	if err != nil {
		return nil, a.layoutMismatch(t, err)
	}
	(*known)[string(rest)] = l
	return l, nil
}

// query processes a statement in the binlog: the start or end of a transaction, or a
// statement that may change tables.
func (a *assembler) query(d *decoder, raw []byte, end uint32) error {
	e, err := d.events.Parse(raw)
	if err != nil {
		return err
	}

	q, ok := e.Event.(*replication.QueryEvent)
	if !ok {
		return fmt.Errorf("QUERY event decoded as %T", e.Event)
	}

	switch first, second := firstWords(q.Query); first {
	case "BEGIN":
		a.sawBegin = true
		return nil
	case "COMMIT":
		return a.end(end)
	case "ROLLBACK":
		if second == "TO" {
			return nil // claims find out which rows are gone
		}
		// The same holds for a rolled-back transaction that also wrote to a table without
		// transactions.
		return a.end(end)
	case "SAVEPOINT", "RELEASE":
		return nil
	case "XA":
		switch second {
		case "START", "BEGIN":
			a.sawBegin = true
			return nil
		case "END":
			return nil
		}
		return a.end(end) // XA COMMIT or ROLLBACK: its rows came at the PREPARE
	}

	a.foreign = true
	if a.sawBegin {
		return a.statement(string(q.Schema), q.Query)
	}

	if err := a.markStale(q.Query); err != nil {
		return err
	}
	if first, _ := firstWords(q.Query); a.watching {
		a.truncate(first, string(q.Schema), q.Query)
	}
	return a.end(end)
}

// firstWords returns the first two words of a statement in upper case.
func firstWords(query []byte) (first, second string) {
	const maxBytes = 40 // enough for two words of every relevant statement
	fields := bytes.Fields(query[:min(len(query), maxBytes)])
	if len(fields) > 0 {
		first = strings.ToUpper(string(bytes.TrimSuffix(fields[0], []byte(";"))))
	}
	if len(fields) > 1 {
		second = strings.ToUpper(string(fields[1]))
	}
	return first, second
}

// markStale marks the tables that a statement may have changed.
func (a *assembler) markStale(query []byte) error {
	a.unlogged.writers = nil // it may have created or dropped one
	text := strings.ToLower(string(query))
	for _, t := range a.tables.byKey {
		if strings.Contains(text, strings.ToLower(t.name)) {
			t.stale, t.hasOtherUniqueKey = true, true
			if strings.Contains(text, "system versioning") {
				return fault.Lostf("table %s.%s was made system-versioned, or no longer is: earlier rows may be old versions of other rows", t.schema, t.name)
			}
		}
	}
	return nil
}

// statement processes a statement inside a transaction. Its rows are not in the binlog,
// because the session used binlog_format=STATEMENT or MIXED.
func (a *assembler) statement(schema string, query []byte) error {
	if first, _ := firstWords(query); first == "CREATE" { // CREATE … SELECT: its rows follow
		return a.markStale(query)
	}
	return a.unlogged.statement(a.tables, schema, query)
}
