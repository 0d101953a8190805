package mongo_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) {
	if err := servers.Crowd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
