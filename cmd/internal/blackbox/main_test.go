package blackbox

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// binary is the program under test, built once: with the race detector, unless
// benchmarks are asked for or raceVariable says false.
//
//nolint:gochecknoglobals // what TestMain makes for all tests
var (
	binary string
	raced  bool
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluicebox-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "sluicebox")
	flag.Parse()
	raced = flag.Lookup("test.bench").Value.String() == "" && os.Getenv(raceVariable) != "false"
	build := exec.Command("go", "build", fmt.Sprintf("-race=%t", raced), "-ldflags", "-X main.version=v0.0.0-test", "-o", binary, "github.com/sluicebox/sluicebox/cmd/sluicebox")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	// The tests mostly wait, for a load to end or a time to pass: more of them
	// run beside each other than there are processors, unless -parallel says how
	// many.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "6"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
