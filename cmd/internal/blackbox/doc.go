// Package blackbox tests the built program from outside. Its tests read only data that
// users can see: rows, requests, exit codes, messages and metrics. It has no code except
// tests.
//
// # Running scenarios by hand
//
// In a full test run each scenario is short. Environment variables select a longer form.
// Scenarios need the test servers. For example, to run one alone:
//
//	store/storetest/servers/servers.sh exec -- env VARIABLES go test -v -run 'NAME' ./cmd/internal/blackbox
//
// With -race, the program under test has the race detector, too.
//
// SLUICEBOX_TEST_VERSIONS selects the servers. By default a scenario runs on one server,
// which its name decides. The value all runs it on each server, and a list such as
// pg15,pg18,mysql,mariadb,mongo on the listed ones. MongoDB has its own scenarios,
// TestMongo…, which run on no other server.
//
// The comment of a test gives the command of its full run. Scenarios that repeat a crash take
// the number of crashes from SLUICEBOX_TEST_CRASHES:
//
//	relay killed under load                       TestKilledUnderLoad               100
//	server crashes, or is shut down, under load   TestTheServerCrashes|TestAFastShutdownIsNotHeldUp  20
//	leader of two relays killed, stopped,
//	frozen, cut off                               TestTwoRelays$                    50
//	both replaced, one after the other            TestARollingRestart               10
//	MongoDB: relay killed under load              TestMongoKilledUnderLoad          100
//	primary crashes, shuts down, steps down,
//	freezes, in sets of one and three             TestMongoThePrimary               30
//	leader of two relays killed, stopped, frozen  TestMongoTwoRelays                30
//
// TestFaults draws faults from a seed for some minutes; make faults runs it, and names its variables.
//
// TestABlockedGroupIsSpilled is worth a run with SLUICEBOX_TEST_ROWS=1000000: its group is
// larger than the buffer, and kills and crashes happen while it is spilled.
package blackbox
