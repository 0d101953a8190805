package blackbox

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// binary is the program under test, built once: with the race detector if the tests have it, else
// as users have it. Its packages are compiled as those of the suites and of the image, so once.
// Only debuggers miss the tables that -w leaves out.
//
//nolint:gochecknoglobals // TestMain sets it for all tests
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluicebox-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "sluicebox")
	build := exec.Command("go", "build", fmt.Sprintf("-race=%t", raced.Enabled), "-trimpath", "-ldflags", "-w -X main.version=v0.0.0-test", "-o", binary, "github.com/sluicebox/sluicebox/cmd/sluicebox")
	if !raced.Enabled {
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		return 1
	}
	if err := errors.Join(servers.Crowd(), raced.Only(busiest()...), leaveOut(beforeRelease()...)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// busiest are the scenarios with the most going on at once. Only they run with the race
// detector: the others test the program as users have it.
func busiest() []func(*testing.T) {
	return []func(*testing.T){
		TestKilledUnderLoad, TestTwoRelays, TestMongoTwoRelays, TestMongoCleanStopUnderLoad,
		TestABlockedGroupIsSpilled, TestLockedRowsInFlight, TestStatusUnderLoad, TestTap,
	}
}

// beforeRelease are the scenarios that only `make scenarios` and -run choose. Each takes long, and shorter
// ones, named here, show most of the same.
func beforeRelease() []func(*testing.T) {
	return []func(*testing.T){
		// TestBench
		TestBenchOnTheBinlog, TestMongoBench, TestMongoBenchInASetOfThree, TestMongoBenchWithoutASet,
		// TestOneTransactionOfHugeRows, TestOneHugeTransaction
		TestMemoryOfLargeRows, TestMemoryOfHugeRows, TestAFirstStartOverALargeBacklog,
		// TestRoutesUnderKills, TestThreeSinksOneDeadOneSlow
		TestRoutesUnderKillsByPolling, TestThreeRoutesWriteAsOneDoes,
		// TestKilledUnderLoad, TestTwoRelays, TestMongoKilledUnderLoad, TestMongoTwoRelays
		TestKilledUnderLoadWithClaims, TestTwoRelaysWithClaims, TestMongoThePrimary,
		// TestReceiverDown, TestABlockedGroupIsSpilled, TestKilledWithRowsInFlightBeforeSpilledOnes
		TestTheBacklogOfAnOutage, TestADeadReceiverWithASmallBuffer, TestDeadReceiverUngroupedParallel, TestASlowReceiverPausesCapture,
		TestCleanStopBesideASlowGroup, TestDeletedRowsBesideADeadGroup,
		// TestOnePoisonedRow, TestMongoAPoisonedDocumentIsFailed
		TestAPoisonedRowInTheOnlyGroup, TestSeveralPoisonedRows, TestARefusedOutcomeKeepsNoLog,
		// TestMongoRealInput, TestCrabletPublishers
		TestMongoRealInputOfOutboxMessages, TestCatbox, TestCatboxClusters, TestPayloadsOfAnyBytes,
		// TestKafkaOnce and the suites of sinks
		TestKafkaUnderLoad, TestDemonstrationsOnBrokers, TestRabbitMQFaults,
		// TestTap, TestStatusUnderLoad, TestReadinessFollowsProgress
		TestTapFilters, TestStatusOfADeadSink, TestReadinessWhileIdle, TestIdleOutbox,
		// TestMongoLeastPrivilege, TestMongoDoctor
		TestMongoEachPrivilegeIsNamed, TestMongoReader, TestMongoWithoutASet,
		// TestTheLogIsLost, TestMongoTheOplogIsRolled, TestTheBinlogIsPurged, TestLateClaimsBehindAStandby
		TestTheSlotIsInvalidated, TestMongoTheCollectionIs, TestTheBinlogOfAnotherServer, TestLateClaimsBehindAReplica,
		// TestLayouts, TestReloads, TestRowsOfRoutesThatAreSetBack, TestInitFromTable
		TestTypesAreReadAgain, TestTypesKeepTheOrder, TestFailedRowsWithoutAState, TestInitFromTableOfLayouts,
		TestRowsWithoutAStateOutliveAChangeOfOutboxes,
		// TestReceiverAnswersWrong, TestOneRefusedItem, TestABlockedGroup, TestSpillOnSQLite
		TestEndlessResponses, TestBodyTooLarge, TestLoneRefusedRow, TestOpenBreakerWithoutRows, TestAReceiverDeadForLong,
		TestOddGroupsDelayNoOtherGroup, TestPollingWithSpilledRows, TestSpilledRowsThatChange, TestManySpilledGroups,
		// TestFailover and the other suites of capture/postgres and capture/mysql, TestTwoRelays
		TestAReplicaIsPromoted, TestTheDatabaseIsPromoted, TestTheFirstHostIsSilent, TestSourcesSpread,
		// TestQuickstart, TestQuickstartKilled, TestMongoQuickstart, TestQuickstartWithFewRights
		TestQuickstartInterrupted, TestQuickstartTextOutput, TestQuickstartKeeps, TestQuickstartAfterAKilledOneOnMySQL,
		TestQuickstartWithFewRightsOnMySQL, TestQuickstartWithPartialRevokes, TestMongoQuickstartKeptAndKilled,
		// TestBacklogOfTheFirstStart, TestFirstStartBlocksGroups, TestRoutesThatFail, TestRoleWithoutReplication
		TestMongoBacklogOfTheFirstStart, TestMongoFirstStartBlocksGroups, TestRouteIsRenamedAndDropped, TestWALLevelReplica,
		// TestSwitchFromAPoller, TestDoctorBesideRelays, TestInbox
		TestSwitchBesideAPoller, TestDoctorBesideRelaysMySQL, TestReceiptsAreRecorded,
		// TestSeveralSources, TestScaleFaults, TestHistory of capture/kafka
		TestScaleReplays, TestScaleReplaysOfDeletedRows, TestManySources, TestScaleOut, TestScaleBlockedGroup, TestScaleRebalance, TestScaleIdleShards,
	}
}

const scenariosVariable = "SLUICEBOX_TEST_SCENARIOS" // all: those of beforeRelease too

// leaveOut skips tests, unless -run, -skip or the environment says which run.
func leaveOut(tests ...func(*testing.T)) error {
	flag.Parse()
	skip := flag.Lookup("test.skip").Value
	if os.Getenv(scenariosVariable) == "all" || flag.Lookup("test.run").Value.String() != "" || skip.String() != "" {
		return nil
	}
	if err := skip.Set(raced.Pattern(tests...)); err != nil {
		return fmt.Errorf("leave scenarios out: %w", err)
	}
	return nil
}
