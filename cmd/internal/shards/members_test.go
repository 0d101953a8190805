package shards_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/shards"
)

// While the cluster is down, a member tries again and again, and logs the same problem once.
func TestMembersLogProblemOnce(t *testing.T) {
	var log bytes.Buffer
	m := shards.Members{Log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, problem := range []string{"down", "down", "down", "refused", "refused"} {
		m.OnGroupManageError(errors.New(problem))
	}
	if n := strings.Count(log.String(), "consumer group left"); n != 2 || m.Problem().Error() != "refused" {
		t.Errorf("got %d lines and problem %v, want 2 and the latest\n%s", n, m.Problem(), log.String())
	}
}
