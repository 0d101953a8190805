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

// Retained asks how long the binlog is behind the acknowledged position; before
// the first acknowledgement since Open, behind where Open began. That is what the
// relay has yet to get through, also where the server has purged a part of it.
//
// Limit is that of a server that bounds its binlog in bytes. Most bound it by time
// only: where half of that has passed since the last acknowledgement, Limit is what
// there is now, so that the relay does not let it become older.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	list, err := s.control.binlogs(ctx)
	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("ask how long the binlog is: %w", mystore.Explain(err))
	}
	acked := s.acks.Last()
	if acked == nil {
		return capture.RetainedLog{}, nil
	}
	var kept capture.RetainedLog
	for _, one := range slices.Backward(list) {
		kept.Bytes += one.size
		if one.name == acked.Parsed.file {
			kept.Bytes -= min(one.size, int64(acked.Parsed.at))
			break
		}
	}
	kept.Limit = s.server.limit()
	if expiry := s.server.expiry(); expiry > 0 && kept.Bytes > 0 && time.Since(acked.At) > expiry/2 {
		kept.Limit = kept.Bytes
	}
	return kept, nil
}

// limit is how many bytes of binlog the server keeps at most; 0 if there is no
// such bound. MariaDB has the setting since 11.4, Percona's server another.
func (sv *server) limit() int64 {
	for _, name := range []string{"max_binlog_total_size", "binlog_space_limit"} {
		if n, err := strconv.ParseInt(sv.setting(name), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return 0
}
