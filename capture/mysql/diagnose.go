package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Diagnose checks everything that a stream needs and returns its findings in the order in
// which to read and fix them. A condition that keeps the role from streaming is a
// store.Fault. Diagnose changes nothing, opens the binlog briefly, and does not disturb a
// running relay. An error means that the remaining checks did not run. It skips checks
// that the store makes as well.
func (s *Source) Diagnose(ctx context.Context) ([]store.Finding, error) {
	e := diagnosis{source: s}
	return e.Result(e.run(ctx))
}

// diagnosis collects findings.
type diagnosis struct {
	fault.Findings

	source *Source
	server *server
}

func (e *diagnosis) run(ctx context.Context) error {
	s := e.source
	sv, faults, err := s.inspect(ctx)
	if err != nil {
		return err
	}

	e.server = sv
	streamOK := "role " + s.stream.User + " may stream the binlog"
	if sv.canStream() {
		if err := s.tryStream(ctx, sv, &faults); err != nil {
			return err
		}
	} else {
		streamOK = ""
	}

	e.Faults = faults.Faults
	e.AddSubject("server", "")
	e.AddSubject("log_bin", "on")
	e.AddSubject("server_id", "")
	e.AddSubject("binlog_format", "ROW")
	e.AddSubject("binlog_row_image", "FULL")
	e.AddSubject("binlog_row_value_options", "")
	if sv.flavour == mySQL {
		e.AddSubject("gtid_mode", "ON")
	}

	e.AddSubject("grants", "")
	e.AddSubject("tables", "")
	e.AddSubject("stream", streamOK)
	e.adviseMetadata()
	e.adviseDurability()
	if err := e.checkRetention(ctx); err != nil {
		return err
	}

	return e.checkServerIDClash(ctx)
}

// adviseMetadata reports whether the binlog names the columns.
func (e *diagnosis) adviseMetadata() {
	const setting = "binlog_row_metadata"
	if value := e.server.setting(setting); value == "FULL" {
		e.Add(setting, store.GradeOK, "FULL: the binlog names the columns")
	} else {
		e.advise(setting, "FULL", value+": the binlog has no column names. The relay matches columns by their order in the current table; rows from before a table change are read from the table instead")
	}
}

// adviseDurability reports a binlog that may not survive a crash of the machine.
func (e *diagnosis) adviseDurability() {
	const setting = "sync_binlog"
	if value := e.server.setting(setting); value != "1" {
		e.advise(setting, "1", value+": a crash of the machine may lose the end of the binlog, with transactions that were already sent. The relay then takes a snapshot of the tables")
	}
}

// advise recommends another value of a setting.
func (e *diagnosis) advise(setting, value, text string) {
	set := e.server.settingFault(setting, text, value, "")
	e.Found = append(e.Found, set.Finding(store.GradeAdvice))
}

// checkRetention reports how long the server keeps its binlog.
func (e *diagnosis) checkRetention(ctx context.Context) error {
	fine := "the binlog does not expire"
	if expiry := e.server.expiry(); expiry > 0 {
		fine = "the binlog is kept for " + formatDuration(expiry) + "; a relay that is down for longer takes a snapshot of the tables"
	}

	e.AddSubject("retention", fine)
	if !e.server.binlogEnabled() {
		return nil
	}

	files, err := e.source.control.binlogs(ctx)
	if denied(err) {
		return nil // the missing grant is a fault of its own
	}
	if err != nil {
		return fmt.Errorf("list binlog files: %w", mystore.Explain(err))
	}

	e.Add("log", store.GradeOK, fmt.Sprintf("the binlog ends at %s:%d; files: %d", e.server.binlogEnd.file, e.server.binlogEnd.at, len(files)))
	return nil
}

// checkServerIDClash looks for another replica with the relay's configured server id. Few
// roles may list replicas; others notice when the two streams clash.
func (e *diagnosis) checkServerIDClash(ctx context.Context) error {
	if e.source.cfg.ServerID == 0 {
		return nil
	}
	rows, err := e.source.control.queryMaps(ctx, e.server.replicasSQL())
	if denied(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list replicas: %w", mystore.Explain(err))
	}

	id := strconv.FormatUint(uint64(e.source.cfg.ServerID), 10)
	for _, row := range rows {
		other := columnValue(row, "host")
		if columnValue(row, "server_id") != id || other == e.source.streamName() {
			continue
		}
		text := fmt.Sprintf("replica %q reads the binlog with server id %s, which is this relay's", other, id)
		const remedy = "give one of them another server id (source.server-id)"
		if e.server.flavour == mariaDB {
			e.Add("server_id", store.GradeFault, text+": each ends the other's stream", remedy)
		} else {
			e.Add("server_id", store.GradeAdvice, text+": the server distinguishes them by UUID, but lists of replicas are ambiguous", remedy)
		}
	}

	return nil
}

// columnValue returns a value of a row by column name, because the case of the names
// differs between servers.
func columnValue(row map[string]string, column string) string {
	for name, value := range row {
		if strings.EqualFold(name, column) {
			return value
		}
	}
	return ""
}

// formatDuration formats a duration in days if there are at least two, otherwise in
// hours.
func formatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day {
		return fmt.Sprintf("%d days", d/day)
	}
	return fmt.Sprintf("%.3g hours", d.Hours())
}
