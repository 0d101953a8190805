package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

var _ capture.LogKeeper = (*Source)(nil)

// keptMark stands between the names of the relay and of a checkpoint in that of the
// slot that keeps log for it.
const keptMark = "_cp_"

// keptForm is a name that leaves room for the relay's and the mark: a slot's has 63
// bytes.
var keptForm = regexp.MustCompile(`^[a-z0-9_]{1,18}$`)

// keptSlot is the slot that keeps log under a name. Two relays must not come to the
// same one, so a mark may not be in the name, nor may it begin with what makes one.
func (s *Source) keptSlot(name string) (string, error) {
	if !keptForm.MatchString(name) || strings.Contains("_"+name, keptMark) {
		return "", &store.SetupError{
			Problem: fmt.Sprintf("no log can be kept under the name %q", name),
			Remedy:  "take 1 to 18 of a-z, 0-9 and _, without cp_ at the beginning and without " + keptMark,
		}
	}
	return s.cfg.Name + keptMark + name, nil
}

// keptName returns what a slot keeps log under, and whether it does for this relay.
func (s *Source) keptName(slot string) (name string, ours bool) {
	name, ours = strings.CutPrefix(slot, s.cfg.Name+keptMark)
	_, err := s.keptSlot(name)
	return name, ours && err == nil
}

// KeepLog implements capture.LogKeeper: it copies the relay's slot, which may be in
// use. The copy stands where the relay's slot does, so at or below whatever is written
// from now on, and never moves.
func (s *Source) KeepLog(ctx context.Context, name string) (string, error) {
	kept, err := s.keptSlot(name)
	if err != nil {
		return "", err
	}
	if err := s.dropKept(ctx, kept); err != nil {
		return "", err
	}
	conn, _, err := s.dial(ctx)
	if err != nil {
		return "", err
	}
	defer closeSession(conn)
	if err := s.copySlot(ctx, conn, s.cfg.Name, kept, false); err != nil {
		return "", explainFull(err, "to keep log takes one")
	}
	if err := s.keepThroughFailover(ctx, conn, kept); err != nil {
		return "", errors.Join(err, s.dropKept(context.WithoutCancel(ctx), kept))
	}
	return kept, nil
}

// keepThroughFailover makes a kept slot a failover slot if the relay's is one, which a
// copy is not by itself. A standby takes it over if it still has the log and the catalog
// rows behind it, as it has for a while after the copy (measured on version 18); for one
// that comes to it when they are gone the log is lost.
func (s *Source) keepThroughFailover(ctx context.Context, conn *pgconn.PgConn, kept string) error {
	sql := fmt.Sprintf("SELECT to_jsonb(s) ->> 'failover' FROM pg_replication_slots s WHERE slot_name = '%s'", s.cfg.Name)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return fmt.Errorf("look at slot %s: %w", s.cfg.Name, s.explainStream(err))
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "true" {
		return nil
	}
	if _, err := conn.Exec(ctx, "ALTER_REPLICATION_SLOT "+kept+" (FAILOVER true)").ReadAll(); err != nil {
		return fmt.Errorf("make %s a failover slot: %w", kept, s.explainStream(err))
	}
	return nil
}

// The log is there from the restart position on, which is earlier than what a reader
// gets: a transaction is in it from its first row on.
const keptLogsSQL = `
SELECT s.slot_name::text, coalesce(greatest(pg_current_wal_lsn() - s.restart_lsn, 0), 0)::bigint, ` + slotLost + `
FROM pg_replication_slots s
WHERE s.plugin = $1 AND s.database = current_database() AND NOT s.temporary AND starts_with(s.slot_name::text, $2)
ORDER BY s.slot_name COLLATE "C"`

// KeptLogs implements capture.LogKeeper.
func (s *Source) KeptLogs(ctx context.Context) (list []capture.KeptLog, err error) {
	err = s.control.twice(ctx, func(conn *pgx.Conn) error {
		list, err = s.keptLogs(ctx, conn)
		return err
	})
	return list, err
}

func (s *Source) keptLogs(ctx context.Context, conn *pgx.Conn) (list []capture.KeptLog, err error) {
	var slot string
	var one capture.KeptLog
	rows, err := conn.Query(ctx, keptLogsSQL, plugin, s.cfg.Name+keptMark)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&slot, &one.Bytes, &one.Lost}, func() error {
			var ours bool
			if one.Name, ours = s.keptName(slot); ours {
				list = append(list, one)
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look at the log that is kept for relay %s: %w", s.cfg.Name, pgstore.Explain(err))
	}
	return list, nil
}

// DropLog implements capture.LogKeeper. A slot that another program reads is left as
// it is, which is an error. A name that no log can be kept under is none.
func (s *Source) DropLog(ctx context.Context, name string) error {
	if kept, err := s.keptSlot(name); err == nil {
		return s.dropKept(ctx, kept)
	}
	return nil // whoever wanted that was refused
}

// dropKept drops a slot that keeps log, if it is there.
func (s *Source) dropKept(ctx context.Context, kept string) error {
	sl, err := s.lookAt(ctx, kept)
	if err != nil || !sl.exists {
		return err
	}
	conn, _, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer closeSession(conn)
	err = pglogrepl.DropReplicationSlot(ctx, conn, kept, pglogrepl.DropReplicationSlotOptions{})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42704" { // undefined_object: it went meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("drop slot %s: %w", kept, s.explainStream(err))
	}
	return nil
}

// keptLogs says what is kept for checkpoints, and whether it could be read.
func (e *examination) keptLogs(ctx context.Context) error {
	const subject = "kept log"
	list, err := e.source.keptLogs(ctx, e.conn)
	if err != nil {
		return err
	}
	for _, one := range list {
		slot := e.source.cfg.Name + keptMark + one.Name
		if one.Lost != "" {
			e.Add(subject, store.Advice, fmt.Sprintf("slot %s, for checkpoint %s, has lost its log (%s)", slot, one.Name, one.Lost), dropStatement(slot))
			continue
		}
		e.Add(subject, store.Fine, fmt.Sprintf("slot %s keeps %s for checkpoint %s", slot, size(one.Bytes), one.Name))
	}
	if sv := e.server; len(list) > 0 && sv.slots >= sv.maxSlots {
		e.Add(subject, store.Advice, fmt.Sprintf("all %d replication slots are taken, and to read kept log takes one more", sv.maxSlots),
			"-- as a superuser and restart the server, or drop a slot that is not needed",
			fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = %d;", sv.maxSlots+moreSlots))
	}
	return nil
}

// KeptAs implements capture.LogKeeper: it is the slot's name.
func (s *Source) KeptAs(name string) string { return s.cfg.Name + keptMark + name }
