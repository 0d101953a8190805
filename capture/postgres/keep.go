package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

// A snapshot has no row of an outbox whose layout is LogOnly. If the old slot can still be
// read from the checkpoint, Open keeps those rows, in this order:
//
//  1. It creates the new slot beside the old one, under nextSlot.
//  2. It opens the view, which frees the session from the exported snapshot.
//  3. It reads the old slot up to the new one, and hands over the rows. The checkpoint follows
//     them, with an origin that marks the snapshot as unfinished.
//  4. It drops the old slot, copies the new one to its name, and drops nextSlot.
//
// The relay replaces the marked checkpoint once it has settled or spilled the rows of the
// view. Until then every Open does the same again, from that checkpoint. Without an old slot that
// can be read, Open saves a marked checkpoint at the new one.

const (
	// unfinishedPrefix begins the origin of a checkpoint from which a snapshot keeps rows.
	unfinishedPrefix = "unfinished snapshot of "
	// nextSlotSuffix ends the name of the slot that replaces the relay's. It fits behind the
	// longest name of a relay: a slot's name has 63 characters.
	nextSlotSuffix = "_unfinished_snapshot"

	// keepRows and keepBytes are how many rows and bytes Open hands over at once.
	keepRows  = 1000
	keepBytes = 1 << 20
)

func (s *Source) hasLogOnly() bool {
	return slices.ContainsFunc(s.cfg.Outboxes, func(o store.Outbox) bool { return o.Layout.LogOnly() })
}

// splitOrigin splits an origin into the log and the state of its publication.
func splitOrigin(origin string) (log, state string) {
	if i := strings.LastIndex(origin, " tables "); i >= 0 {
		return origin[:i], origin[i+1:]
	}
	return origin, ""
}

// finishSnapshot removes the slot that an interrupted Open left, or gives it the relay's name
// if the old slot is gone.
func (s *Source) finishSnapshot(ctx context.Context, conn *pgx.Conn, sl slot) (slot, error) {
	next, err := s.slots.query(ctx, conn, s.slots.next())
	if err != nil || !next.exists {
		return sl, err
	}
	if sl.exists || next.lost != "" {
		return sl, s.slots.drop(ctx, s.repl, s.slots.next())
	}
	if err := s.renameNextSlot(ctx); err != nil {
		return sl, err
	}
	return s.slots.query(ctx, conn, s.cfg.Name)
}

// renameNextSlot gives the next slot the relay's name. Both have the position of the new slot.
func (s *Source) renameNextSlot(ctx context.Context) error {
	err := s.slots.copy(ctx, s.repl, s.slots.next(), s.cfg.Name, false)
	if err == nil {
		err = s.slots.copyFailover(ctx, s.repl, s.slots.next(), s.cfg.Name)
	}
	if err != nil {
		return explainNoFreeSlot(err, fmt.Sprintf("slot %s needs one to get its name", s.slots.next()))
	}
	return s.slots.drop(ctx, s.repl, s.slots.next())
}

// snapshotAndKeep takes a snapshot and keeps the rows that only the old slot has.
func (s *Source) snapshotAndKeep(ctx context.Context, at store.Checkpoint, tables capture.Tables, p openState, reason string) (_ capture.OpenResult, err error) {
	at.Origin = strings.TrimPrefix(at.Origin, unfinishedPrefix)
	_, was := splitOrigin(at.Origin)
	k := &keeper{source: s, tables: tables, at: store.Checkpoint{Origin: unfinishedPrefix + at.Origin, Position: at.Position}}
	if err := tables.Keep(ctx, k.at, nil); err != nil {
		return capture.OpenResult{}, err
	}

	created, err := s.slots.createOwn(ctx, s.repl, s.slots.next(), p.server.version)
	if err != nil {
		err = explainNoFreeSlot(err, fmt.Sprintf("the new slot needs one beside slot %s for a moment", s.cfg.Name))
		return capture.OpenResult{}, fmt.Errorf("new slot needed, because %s: %w", reason, err)
	}
	renaming := false
	var view store.View
	defer func() {
		if err == nil {
			return
		}
		if view != nil {
			view.Close()
		}
		if !renaming {
			err = errors.Join(err, s.slots.drop(context.WithoutCancel(ctx), nil, s.slots.next()))
		}
	}()
	until, err := pglogrepl.ParseLSN(created.ConsistentPoint)
	if err != nil {
		return capture.OpenResult{}, err
	}
	if view, err = tables.View(ctx, created.SnapshotName); err != nil {
		return capture.OpenResult{}, fmt.Errorf("read tables as of slot %s: %w", s.slots.next(), err)
	}

	kept := s.publishedThroughout(was)
	var lost *capture.LostError
	if err := k.read(ctx, p.slot.confirmed, until); errors.As(err, &lost) {
		reason, kept = fmt.Sprintf("%s, and the old log could not be read: %s", reason, lost.Reason), nil
	} else if err != nil {
		return capture.OpenResult{}, fmt.Errorf("keep rows of slot %s, because %s: %w", s.cfg.Name, reason, err)
	}
	k.at = store.Checkpoint{Origin: unfinishedPrefix + s.origin, Position: formatLSN(until)}
	if err := tables.Keep(ctx, k.at, nil); err != nil {
		return capture.OpenResult{}, err
	}

	renaming = true
	if err := s.replaceSlot(ctx); err != nil {
		return capture.OpenResult{}, err
	}
	s.confirmed = until
	return capture.OpenResult{Origin: s.origin, From: k.at.Position, View: view, SnapshotReason: reason, Kept: kept}, nil
}

// replaceSlot puts the next slot in the place of the relay's.
func (s *Source) replaceSlot(ctx context.Context) error {
	err := s.awaitOwnSlot(ctx)
	if err != nil {
		return err
	}
	if s.repl, _, err = s.slots.dial(ctx); err != nil {
		return err
	}
	if err := s.slots.drop(ctx, s.repl, s.cfg.Name); err != nil {
		return err
	}
	return s.renameNextSlot(ctx)
}

// awaitOwnSlot waits until the server has noticed the end of the last stream.
func (s *Source) awaitOwnSlot(ctx context.Context) error {
	return s.control.do(ctx, func(conn *pgx.Conn) error {
		_, err := s.slots.wait(ctx, conn, s.repl)
		return err
	})
}

// publishedThroughout returns the outboxes that are LogOnly and whose rows were all published
// since the publication had an earlier state.
func (s *Source) publishedThroughout(was string) (names []string) {
	before, now := parsePublicationState(was), parsePublicationState(s.publicationState)
	tables := map[string]uint32{}
	for _, t := range s.server.tables {
		for _, o := range t.outboxes {
			tables[o.Name] = t.oid
		}
	}
	for i := range s.cfg.Outboxes {
		o := &s.cfg.Outboxes[i]
		if !o.Layout.LogOnly() {
			continue
		}
		oid, isTable := tables[o.Name]
		if !isTable || before.sameFor(now, fmt.Sprint(oid)) {
			names = append(names, o.Name)
		}
	}
	return names
}

// publicationParts are the parts of a publication's state; see publicationStateSQL.
type publicationParts struct {
	tables      map[string]bool
	publication string
	entries     map[string]string // by table
	schemas     string
}

func parsePublicationState(state string) publicationParts {
	p := publicationParts{tables: map[string]bool{}, entries: map[string]string{}}
	tables, rest, _ := strings.Cut(strings.TrimPrefix(state, "tables "), publicationSeparator)
	for table := range strings.SplitSeq(tables, ",") {
		p.tables[table] = true
	}
	rest, p.schemas, _ = strings.Cut(rest, " schemas ")
	var entries string
	p.publication, entries, _ = strings.Cut(rest, " ")
	for entry := range strings.SplitSeq(entries, ",") {
		id, table, _ := strings.Cut(entry, "=")
		p.entries[table] = id
	}
	return p
}

// sameFor reports whether two states publish a table by the same objects.
func (p publicationParts) sameFor(now publicationParts, table string) bool {
	return p.tables[table] && p.publication == now.publication && p.entries[table] == now.entries[table] &&
		(p.entries[table] != "" || p.schemas == now.schemas)
}

// keeper hands over the rows that only the log has.
type keeper struct {
	source *Source
	tables capture.Tables
	at     store.Checkpoint // of the last row handed over
	items  []store.Item
	bytes  int64
}

// read reads the relay's slot from the keeper's position up to an LSN. It acknowledges
// nothing. A *capture.LostError means that reading it again does not help.
func (k *keeper) read(ctx context.Context, confirmed, until pglogrepl.LSN) error {
	s := k.source
	s.confirmed = confirmed
	s.resetState(k.at.Position)
	heartbeat := s.cfg.HeartbeatInterval
	s.cfg.HeartbeatInterval = -1
	defer func() { s.cfg.HeartbeatInterval = heartbeat }()

	for {
		err := k.run(ctx, until)
		var unreadable *fault.UnreadableLogError
		if errors.As(err, &unreadable) && ctx.Err() == nil {
			if err := s.awaitOwnSlot(ctx); err != nil {
				return err
			}
			continue // until the source counts it as lost
		}
		var lost *capture.LostError
		if errors.As(err, &lost) {
			if changed := s.checkPublished(ctx); changed != nil {
				return fmt.Errorf("publication changed meanwhile: %v", changed) // the next Open finds the change
			}
		}
		if err == nil || lost != nil {
			if keepErr := k.hand(ctx, k.at); keepErr != nil {
				return keepErr
			}
		}
		return err
	}
}

// run is one stream of read.
func (k *keeper) run(ctx context.Context, until pglogrepl.LSN) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- k.source.Run(ctx, capture.Span{From: k.at.Position, Until: formatLSN(until)}, out) }()
	for {
		select {
		case b := <-out:
			if err := k.add(ctx, b); err != nil {
				cancel(err) // further batches are dropped
			}
		case err := <-done:
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}

// add takes a batch, and hands over the collected rows once they are many.
func (k *keeper) add(ctx context.Context, b capture.Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.Items = slices.DeleteFunc(b.Items, func(it store.Item) bool { return !k.keeps(it.Outbox) })
	k.items = append(k.items, b.Items...)
	k.bytes += store.BytesOf(b.Items)
	if b.Position != "" {
		k.at.Position = b.Position
	}
	if len(k.items) < keepRows && k.bytes < keepBytes {
		return nil
	}
	at := k.at
	if b.Position == "" {
		at.Position = "" // inside a transaction
	}
	return k.hand(ctx, at)
}

// keeps reports whether only the log has the rows of an outbox.
func (k *keeper) keeps(outbox string) bool {
	return slices.ContainsFunc(k.source.cfg.Outboxes, func(o store.Outbox) bool { return o.Name == outbox && o.Layout.LogOnly() })
}

// hand hands over the collected rows.
func (k *keeper) hand(ctx context.Context, at store.Checkpoint) error {
	if len(k.items) == 0 {
		return nil
	}
	if err := k.tables.Keep(ctx, at, k.items); err != nil {
		return err
	}
	k.items, k.bytes = nil, 0
	return nil
}
