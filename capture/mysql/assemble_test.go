package mysql

import (
	"errors"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
)

// TestEventsOfOtherTypes checks that the assembler never skips an event that may hide
// rows.
func TestEventsOfOtherTypes(t *testing.T) {
	const partialRowData = 172 // MariaDB 12
	plain, ignorable := make([]byte, headerSize), make([]byte, headerSize)
	ignorable[17] = byte(replication.LOG_EVENT_IGNORABLE_F)
	a := newAssembler(&server{flavour: mySQL, tables: &tables{}}, &Config{}, binlogPosition{set: emptySet(mySQL)})
	a.outer = &decoder{}
	var lost *capture.LostError
	if err := a.event(replication.INCIDENT_EVENT, plain, 0); !errors.As(err, &lost) {
		t.Errorf("an incident: %v", err)
	}

	var no *capture.NoStreamError
	if err := a.event(replication.ANONYMOUS_GTID_EVENT, plain, 0); !errors.As(err, &no) {
		t.Errorf("transaction without a GTID: %v", err)
	}

	for _, kind := range []replication.EventType{partialRowData, replication.LOAD_EVENT, replication.WRITE_ROWS_EVENTv0, 200} {
		if err := a.event(kind, plain, 0); err == nil {
			t.Errorf("event of type %d was skipped", kind)
		}
	}

	if err := a.event(200, ignorable, 0); err != nil {
		t.Errorf("ignorable event: %v", err)
	}
	a.outer = nil
	if err := a.event(replication.XID_EVENT, plain, 0); err == nil {
		t.Error("event before the format description was accepted")
	}
}

func TestReasons(t *testing.T) {
	for message, want := range map[string]reason{
		"A slave with the same server_uuid/server_id as this slave has connected to the master; the first event '' at 4":                       clashReason,
		"Cannot replicate because the source purged required binary logs. Replicate the missing transactions from elsewhere":                   lostReason,
		"Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old":                                lostReason,
		"Error: connecting slave requested to start from GTID 0-1-100, which is not in the master's binlog":                                    lostReason,
		"Replica has more GTIDs than the source has, using the source's SERVER_UUID. This may indicate that the end of the binary log was cut": lostReason,
		"Binary log is not open": noBinlogReason,
		"The replication sender thread cannot start in AUTO_POSITION mode: this server has GTID_MODE = OFF instead of ON.": gtidReason,
		"Misconfigured master - server_id was not set":                                                                     noServerIDReason,
		"log event entry exceeded max_allowed_packet":                                                                      otherReason,
	} {
		if got := reasonOf(message); got != want {
			t.Errorf("%q is reason %d, want %d", message, got, want)
		}
	}
}
