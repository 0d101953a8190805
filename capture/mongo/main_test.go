package mongo_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) {
	// With the race detector only the tests with the most going on at once run.
	err := errors.Join(servers.Crowd(), raced.Only(TestSuiteAlone, TestSilentServer, TestTap, TestNoID,
		TestSkippedEventsAdvancePosition, TestFrozenPrimary))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
