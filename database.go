package sluicebox

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// Database opens the store and the log of one database. The type Database of
// capture/postgres, capture/mysql, capture/mongo and capture/sqlite implements it.
type Database interface {
	// Store returns the store of a relay, without a connection.
	Store(of store.Settings) (ledger.Store, error)

	// Stream returns a source that reads the log, without a connection. The source may also
	// be a capture.HistoryReader, SlotRetainer, RetentionChecker, ReadinessChecker or
	// SlotDropper.
	Stream(of capture.Settings) (capture.Stream, error)

	// MaxSilence is the longest time between two messages of the log. 0: a log may be silent.
	MaxSilence() time.Duration

	// Unreachable reports whether an error may pass by itself, so that a retry makes sense.
	Unreachable(err error) bool
}

// source is a capture source that capture.Follow can run and that holds sessions.
type source interface {
	capture.Resumer
	Close()
}

// readinessChecker is a capture.ReadinessChecker with sessions.
type readinessChecker interface {
	capture.ReadinessChecker
	Close()
}

// slotDropper is a capture.SlotDropper with sessions.
type slotDropper interface {
	capture.SlotDropper
	Close()
}

// database is a Database in use. A function is nil if the database has no such component.
type database struct {
	Database
	store               ledger.Store
	newStream           func() (capture.Stream, error)
	newReadinessChecker func() (readinessChecker, error)
	newHistoryReader    func() (replay.HistoryReader, error)
	newSlotRetainer     func() (replay.SlotRetainer, error)
	newRetentionChecker func() (replay.RetentionChecker, error)
	newSlotDropper      func() (slotDropper, error)
}

// openDatabase opens the database of a relay, without a connection. Close its store when
// done.
func openDatabase(o *Options) (*database, error) {
	st, err := o.Database.Store(store.Settings{Name: o.Name, Holder: o.Holder, Outboxes: o.tables(), TakeoverTimeout: o.TakeoverTimeout})
	if err != nil {
		return nil, err
	}
	settings := capture.Settings{Name: o.Name, Outboxes: o.tables(), MaxBatchBytes: o.maxBatchBytes()}
	db := &database{Database: o.Database, store: st, newStream: func() (capture.Stream, error) { return o.Database.Stream(settings) }}
	src, err := db.newStream()
	if err != nil {
		return db, nil // opening the log reports the error
	}
	defer src.Close()
	db.newReadinessChecker = streamAs[readinessChecker](db.newStream, src)
	db.newHistoryReader = streamAs[replay.HistoryReader](db.newStream, src)
	db.newSlotRetainer = streamAs[replay.SlotRetainer](db.newStream, src)
	db.newRetentionChecker = streamAs[replay.RetentionChecker](db.newStream, src)
	db.newSlotDropper = streamAs[slotDropper](db.newStream, src)
	return db, nil
}

// streamAs returns a function that opens another source as a component, or nil if the
// sources of the database are no such component.
func streamAs[T any](open func() (capture.Stream, error), example capture.Stream) func() (T, error) {
	if _, is := example.(T); !is {
		return nil
	}
	return func() (component T, err error) {
		src, err := open()
		if err != nil {
			return component, err
		}
		return src.(T), nil
	}
}

// dropSlot drops the slot of the relay, if the database has slots.
func (d *database) dropSlot(ctx context.Context) error {
	if d.newSlotDropper == nil {
		return nil
	}
	src, err := d.newSlotDropper()
	if err != nil {
		return err
	}
	defer src.Close()
	return src.DropSlot(ctx)
}

// holderName identifies this process as a leader, e.g. "db1 process 812".
func holderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s process %d", host, os.Getpid())
}
