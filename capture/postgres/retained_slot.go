package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

var _ capture.SlotRetainer = (*Source)(nil)

// retainedSlotInfix separates the relay's name from the checkpoint's in the name of a
// retained slot.
const retainedSlotInfix = "_cp_"

var (
	// plainNamePattern matches a name that appears unchanged in its slot's name. It leaves
	// room for the relay's name and the infix: a slot name has at most 63 of a to z, 0 to
	// 9 and _.
	plainNamePattern = regexp.MustCompile(`^[a-z0-9_]{1,18}$`)
	// hashedNamePattern matches the hash that replaces any other name.
	hashedNamePattern = regexp.MustCompile(`^[a-z2-7]{19}$`)
)

// hashPrefix begins the name that RetainedSlots returns for a slot with a hashed name. The
// name of a checkpoint never contains the character.
const hashPrefix = "="

// SlotFor implements capture.SlotRetainer. It returns the slot's name. Two names never get
// the same slot:
//
//   - A name that contains the infix, or forms one at its start, is hashed, because the
//     slot could belong to another relay.
//   - A name that is too long or has a hyphen is hashed.
//   - A hash is longer than every plain name.
func (s *Source) SlotFor(name string) string {
	suffix := name
	if hash, ok := strings.CutPrefix(name, hashPrefix); ok {
		suffix = hash
	} else if !isPlainName(name) {
		sum := sha256.Sum256([]byte(name))
		suffix = strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:19])
	}
	return s.cfg.Name + retainedSlotInfix + suffix
}

// isPlainName reports whether a name is in its slot's as it is.
func isPlainName(name string) bool {
	return plainNamePattern.MatchString(name) && !strings.Contains("_"+name, retainedSlotInfix)
}

// validSlotName is SlotFor of a name of a checkpoint, or of RetainedSlots.
func (s *Source) validSlotName(name string) (string, error) {
	hash, hashed := strings.CutPrefix(name, hashPrefix)
	if err := store.ValidateSavepointName(name); err != nil && (!hashed || !hashedNamePattern.MatchString(hash)) {
		return "", &store.SetupError{Problem: err.Error(), Remedy: "take another name"}
	}
	return s.SlotFor(name), nil
}

// retainedNameOf returns the name under which a slot retains WAL, and whether it does so
// for a relay.
func retainedNameOf(relay, slot string) (name string, ours bool) {
	name, ours = strings.CutPrefix(slot, relay+retainedSlotInfix)
	if ours && hashedNamePattern.MatchString(name) {
		return hashPrefix + name, true
	}
	return name, ours && isPlainName(name)
}

// RetainLog implements capture.SlotRetainer. It copies the relay's slot, which may be in
// use. The copy has the slot's position, which is at or below everything written from now
// on, and never advances.
func (s *Source) RetainLog(ctx context.Context, name string) (string, error) {
	slotName, err := s.validSlotName(name)
	if err != nil {
		return "", err
	}
	if err := s.slots.dropRetained(ctx, slotName); err != nil {
		return "", err
	}

	conn, _, err := s.slots.dial(ctx)
	if err != nil {
		return "", err
	}
	defer closeSession(conn)
	if err := s.slots.copy(ctx, conn, s.cfg.Name, slotName, false); err != nil {
		return "", explainNoFreeSlot(err, "retaining WAL needs one")
	}
	if err := s.slots.copyFailover(ctx, conn, s.cfg.Name, slotName); err != nil {
		return "", errors.Join(err, s.slots.dropRetained(context.WithoutCancel(ctx), slotName))
	}
	return slotName, nil
}

// copyFailover makes the copy of a slot a failover slot if the original is one, because a
// copy is not. A standby synchronizes it as long as the standby still has the
// WAL and the catalog rows after it, which is true for a while after the copy (measured
// on version 18). On a standby that synchronizes later, that log is lost.
func (s *slots) copyFailover(ctx context.Context, conn *pgconn.PgConn, from, to string) error {
	sql := fmt.Sprintf("SELECT to_jsonb(s) ->> 'failover' FROM pg_replication_slots s WHERE slot_name = '%s'", from)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return fmt.Errorf("read slot %s: %w", from, s.explainConnect(err))
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "true" {
		return nil
	}
	if _, err := conn.Exec(ctx, "ALTER_REPLICATION_SLOT "+to+" (FAILOVER true)").ReadAll(); err != nil {
		return fmt.Errorf("make %s a failover slot: %w", to, s.explainConnect(err))
	}
	return nil
}

// The slot retains WAL from restart_lsn, which is earlier than the first transaction that
// a reader gets, because a transaction is in the WAL from its first row.
const retainedSlotsSQL = `
SELECT s.slot_name::text, coalesce(greatest(pg_current_wal_lsn() - s.restart_lsn, 0), 0)::bigint, ` + slotLostExpr + `
FROM pg_replication_slots s
WHERE s.plugin = $1 AND s.database = current_database() AND NOT s.temporary AND starts_with(s.slot_name::text, $2)
ORDER BY s.slot_name COLLATE "C"`

// RetainedSlots implements capture.SlotRetainer.
func (s *Source) RetainedSlots(ctx context.Context) (list []capture.RetainedSlot, err error) {
	err = s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		list, err = s.slots.listRetained(ctx, conn)
		return err
	})
	return list, err
}

func (s *slots) listRetained(ctx context.Context, conn *pgx.Conn) (list []capture.RetainedSlot, err error) {
	var slot string
	var retained capture.RetainedSlot
	rows, err := conn.Query(ctx, retainedSlotsSQL, plugin, s.cfg.Name+retainedSlotInfix)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&slot, &retained.Bytes, &retained.Lost}, func() error {
			var ours bool
			if retained.Name, ours = retainedNameOf(s.cfg.Name, slot); ours {
				list = append(list, retained)
			}
			return nil
		})
	}

	if err != nil {
		return nil, fmt.Errorf("list retained slots of relay %s: %w", s.cfg.Name, pgstore.Explain(err))
	}
	return list, nil
}

// ReleaseLog implements capture.SlotRetainer. If another program reads the slot,
// ReleaseLog returns an error and keeps it. A name that RetainLog rejects is no error.
func (s *Source) ReleaseLog(ctx context.Context, name string) error {
	if slotName, err := s.validSlotName(name); err == nil {
		return s.slots.dropRetained(ctx, slotName)
	}
	return nil // RetainLog rejected that name
}

// dropRetained drops a slot that retains WAL, if it exists.
func (s *slots) dropRetained(ctx context.Context, slotName string) error {
	sl, err := s.read(ctx, slotName)
	if err != nil || !sl.exists {
		return err
	}
	return s.drop(ctx, nil, slotName)
}

// checkRetainedSlots reports the WAL retained for checkpoints, and whether it can be
// read.
func (e *diagnosis) checkRetainedSlots(ctx context.Context) error {
	const subject = "named checkpoints"
	list, err := e.source.slots.listRetained(ctx, e.conn)
	if err != nil {
		return err
	}
	for _, one := range list {
		slot, of := e.source.SlotFor(one.Name), "checkpoint "+one.Name
		if strings.HasPrefix(one.Name, hashPrefix) {
			of = "a checkpoint whose name is hashed"
		}
		if one.Lost != "" {
			e.Add(subject, store.GradeAdvice, fmt.Sprintf("slot %s, for %s, has lost its WAL (%s)", slot, of, one.Lost), dropStatement(slot))
			continue
		}
		e.Add(subject, store.GradeOK, fmt.Sprintf("slot %s retains %s for %s", slot, formatBytes(one.Bytes), of))
	}

	if sv := e.server; len(list) > 0 && sv.slots >= sv.maxSlots {
		e.Add(subject, store.GradeAdvice, fmt.Sprintf("all %d replication slots are taken, and reading retained WAL needs one more", sv.maxSlots),
			"-- as a superuser and restart the server, or drop an unused slot",
			fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = %d;", sv.maxSlots+spareSlots))
	}
	return nil
}
