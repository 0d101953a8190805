package mysql

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Retained measures the binlog behind the acknowledged position, or behind the start
// position of Open before the first acknowledgement. The size includes all binlog that
// the relay has yet to process, even if the server has purged part of it.
//
// Limit is the server's limit for its binlog in bytes. Most servers limit it only by
// time: once half of that time has passed since the last acknowledgement, Limit is the
// current size, so that the relay does not fall further behind.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	list, err := s.control.binlogs(ctx)
	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("list binlog files: %w", mystore.Explain(err))
	}

	acked := s.acks.Last()
	if acked == nil {
		return capture.RetainedLog{}, nil
	}

	var retained capture.RetainedLog
	for _, file := range slices.Backward(list) {
		retained.Bytes += file.size
		if file.name == acked.Parsed.file {
			retained.Bytes -= min(file.size, int64(acked.Parsed.at))
			break
		}
	}

	retained.Limit = s.server.limit()
	if expiry := s.server.expiry(); expiry > 0 && retained.Bytes > 0 && time.Since(acked.At) > expiry/2 {
		retained.Limit = retained.Bytes
	}
	return retained, nil
}

// limit returns the server's limit for its binlog in bytes; 0 if there is none. MariaDB
// has the setting since 11.4, Percona Server has its own.
func (sv *server) limit() int64 {
	for _, name := range []string{"max_binlog_total_size", "binlog_space_limit"} {
		if n, err := strconv.ParseInt(sv.setting(name), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return 0
}
