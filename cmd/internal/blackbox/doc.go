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
//	Scenario                                      NAME                              VARIABLES
//	receiver down                                 TestReceiverDown$                 SLUICEBOX_TEST_OUTAGE=30s
//	… past the buffer, and the relay is killed    TestReceiverDownPastTheBuffer     SLUICEBOX_TEST_ROWS=50000
//	a rotated token, 500 to all, an HTML page     TestReceiverAnswersWrong          SLUICEBOX_TEST_OUTAGE=20s
//	… recovery while requests hang                TestReceiverBackWhileRequestsHang
//	400 to all, from a receiver without proof     TestReceiverRejectsEverything     SLUICEBOX_TEST_OUTAGE=30s
//	an operator ends the wait                     TestRetryNowEndsAnOutage
//	one poisoned row among many                   TestOnePoisonedRow                SLUICEBOX_TEST_ROWS=100000
//	… several                                     TestSeveralPoisonedRows           SLUICEBOX_TEST_ROWS=100000
//	… refused item by item                        TestOneRefusedItem                SLUICEBOX_TEST_ROWS=100000
//	… in the only group                           TestAPoisonedRowInTheOnlyGroup
//	… alone on a quiet system                     TestLoneRefusedRow
//	flaky receiver                                TestFlakyReceiver                 SLUICEBOX_TEST_ROWS=20000
//	open circuit breaker without waiting rows     TestOpenBreakerWithoutRows
//	one of two sinks hangs                        TestOneOfTwoSinksHangs            SLUICEBOX_TEST_OUTAGE=30s
//	a group for each row; one group for all       TestManyGroupsAndOne              SLUICEBOX_TEST_ROWS=100000
//	429 and 503, with and without Retry-After     TestRetryAfterIsObeyed
//	… for one group                               TestRetryAfterForOneGroup         SLUICEBOX_TEST_OUTAGE=20s
//	413                                           TestBodyTooLarge
//	connection lost after acceptance              TestConnectionLostAfterAcceptance
//	endless responses, and of 100 MB              TestEndlessResponses
//	on-failed: block, a kill, skip and requeue    TestABlockedGroup$
//	… with groups blocked at the first start      FirstStartBlocksGroups
//	a pause, across a kill                        TestAPausedGroup
//	requests with rows of several groups          TestRequestsAreShared             SLUICEBOX_TEST_ROWS=100000
//	a custom table to a webhook                   TestWebhook
//	a stop during a checkpoint write, or while
//	the receiver hangs                            TestCleanStopWhile
//	relay killed under load                       TestKilledUnderLoad               SLUICEBOX_TEST_CRASHES=100
//	claims: off: stop, kill, polling, SQLite      WithoutClaims
//	server crashes under load                     TestTheServerCrashes              SLUICEBOX_TEST_CRASHES=20
//	server shut down under load                   TestAFastShutdownIsNotHeldUp      SLUICEBOX_TEST_CRASHES=20
//	slot dropped, invalidated, recreated;
//	publication dropped, by its owner or not      TestTheSlotIs|TestThePublication|TestTheLogIsLost
//	wal_level raised while the relay polls        TestWALLevelReplica
//	rows reset by SQL; sweeps under load          TestRowsThatAreSetBack|TestASweepSendsNoRowTwice
//	a day of log behind the checkpoint            TestADayOfLog                     SLUICEBOX_TEST_ROWS=1000000
//	a blocked group larger than the buffer,
//	with kills and crashes while it is spilled    TestABlockedGroupIsSpilled        SLUICEBOX_TEST_ROWS=1000000
//	receiver dead past max-hold                   TestAReceiverDeadForLong          SLUICEBOX_TEST_OUTAGE=10m
//	… with a buffer smaller than its requests     TestADeadReceiverWithASmallBuffer
//	… a kill with rows in flight before spilled
//	ones                                          TestKilledWithRowsInFlightBeforeSpilledOnes
//	… rows without groups, in parallel            TestDeadReceiverUngroupedParallel SLUICEBOX_TEST_ROWS=200000
//	of three sinks one dead and one slow          TestThreeSinksOneDeadOneSlow      SLUICEBOX_TEST_ROWS=50000 SLUICEBOX_TEST_OUTAGE=30s
//	a catch-up spills nothing                     TestACatchUpSpillsNothing         SLUICEBOX_TEST_ROWS=200000
//	a receiver slow for minutes                   TestASlowReceiverPausesCapture    SLUICEBOX_TEST_OUTAGE=3m
//	a transaction larger than memory              TestOneHugeTransaction|TestOneTransactionOfHugeRows
//	                                                                                SLUICEBOX_TEST_ROWS=1000000
//	a backlog larger than the buffer              TestAFirstStartOverALargeBacklog  SLUICEBOX_TEST_ROWS=2000000
//	spilled rows change; odd group names          TestSpilledRowsThatChange
//	binlog purged, reset, of another server;
//	two relays with one server id                 TestTheBinlog|TestTwoRelaysOfOneServerID
//	log lost while rows are spilled               TestPollingWithSpilledRows        SLUICEBOX_TEST_ROWS=50000
//	leader of two relays killed, stopped,
//	frozen, cut off                               TestTwoRelays$                    SLUICEBOX_TEST_CRASHES=50
//	both replaced, one after the other            TestARollingRestart               SLUICEBOX_TEST_CRASHES=10
//	a standby's probes; its leader's lock lost    TestAStandbyNamesItsLeader
//	a takeover before the first delivery; a stop
//	after a lost lock; a silent first host        TestATakeoverBefore|TestStopAfterALostLock|TestTheFirstHostIsSilent
//	a standby of the database promoted            TestTheDatabaseIsPromoted|TestAsynchronousFailoverLosesRows
//	two relays on one SQLite file                 TestTwoRelaysOnSQLite
//	a pooler in front of the database             TestAPooler
//	polling: locked heads, a blocked group        TestPollingOnly
//	a legacy processor on the same table          TestBesideALegacyProcessor
//	a blocked group on SQLite                     TestSpillOnSQLite
//	replays, also across a kill of the leader     TestReplay|TestMongoReplay
//	faults of a setup and their fixes             TestDoctor
//	MongoDB: real input by pymongo, each form     TestMongoRealInput
//	relay killed under load                       TestMongoKilledUnderLoad          SLUICEBOX_TEST_CRASHES=100
//	primary crashes, shuts down, steps down,
//	freezes, in sets of one and three             TestMongoThePrimary               SLUICEBOX_TEST_CRASHES=30
//	leader of two relays killed, stopped, frozen  TestMongoTwoRelays                SLUICEBOX_TEST_CRASHES=30
//	oplog rolled; collection dropped, renamed;
//	documents of 16 MiB                           TestMongoTheOplog|TestMongoTheCollection|TestMongoADocument
//	a server becomes a replica set                TestMongoWithoutASet
//	the users of deploy/mongo; doctor             TestMongoLeastPrivilege|TestMongoReader|TestMongoDoctor
package blackbox
