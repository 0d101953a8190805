// Package blackbox tests the built program from outside: it reads only what a
// user can see, the rows, the requests, the exit codes, the messages and the
// metrics. It has no code but its tests.
//
// # The scenarios, by hand
//
// Each scenario is short where all tests run, and has a longer form that an
// environment variable asks for. They need the test servers; run one alone with
//
//	store/storetest/servers/servers.sh exec -- env VARIABLES go test -v -run 'NAME' ./cmd/internal/blackbox
//
// With -race the program has the race detector too, and not only the tests.
// SLUICEBOX_TEST_VERSIONS=all runs a scenario beside each server, and not beside the
// one that its name decides; pg15,pg18,mysql,mariadb,mongo runs it beside those of them
// that are named. MongoDB has scenarios of its own, TestMongo…, which run beside no other.
//
//	What happens                                  NAME                              VARIABLES
//	the receiver is down                          TestReceiverDown$                 SLUICEBOX_TEST_OUTAGE=30s
//	… past the buffer, and the relay is killed    TestReceiverDownPastTheBuffer     SLUICEBOX_TEST_ROWS=50000
//	a token is rotated, 500 to all, a page        TestReceiverAnswersWrong          SLUICEBOX_TEST_OUTAGE=20s
//	… it comes back while requests hang           TestReceiverBackWhileRequestsHang
//	400 to all, from a receiver not yet proven    TestReceiverRejectsEverything     SLUICEBOX_TEST_OUTAGE=30s
//	an operator ends the wait                     TestRetryNowEndsAnOutage
//	one poisoned row among many                   TestOnePoisonedRow                SLUICEBOX_TEST_ROWS=100000
//	… several                                     TestSeveralPoisonedRows           SLUICEBOX_TEST_ROWS=100000
//	… refused item by item                        TestOneRefusedItem                SLUICEBOX_TEST_ROWS=100000
//	… in the only group                           TestAPoisonedRowInTheOnlyGroup
//	… alone on a quiet system                     TestLoneRefusedRow
//	a flaky receiver                              TestFlakyReceiver                 SLUICEBOX_TEST_ROWS=20000
//	a suspect endpoint that no row waits for      TestSuspectEndpointWithoutRows
//	one of two sinks hangs                        TestOneOfTwoSinksHangs            SLUICEBOX_TEST_OUTAGE=30s
//	a group for each row; one group               TestManyGroupsAndOne              SLUICEBOX_TEST_ROWS=100000
//	429 and 503, with and without Retry-After     TestComeBackLater$
//	… for one group                               TestComeBackLaterForOneGroup      SLUICEBOX_TEST_OUTAGE=20s
//	413                                           TestBodyTooLarge
//	a connection cut behind the taking            TestCutBehindTheTaking
//	answers without an end, and of 100 MB         TestEndlessAnswers
//	on-failed: block, a kill, skip and requeue    TestABlockedGroup
//	… that are in the table at the first start    FirstStartTakesBlocks
//	a pause, across a kill                        TestAPausedGroup
//	requests are shared                           TestRequestsAreShared             SLUICEBOX_TEST_ROWS=100000
//	a table of one's own to a webhook             TestWebhook
//	a stop while a checkpoint is written, or
//	while the receiver hangs                      TestCleanStopWhile
//	the relay is killed under load                TestKilledUnderLoad               SLUICEBOX_TEST_CRASHES=100
//	claims: off, a stop, a kill, polling, SQLite  WithoutClaims
//	the server crashes under load                 TestTheServerCrashes              SLUICEBOX_TEST_CRASHES=20
//	the server shuts down under load              TestAFastShutdownIsNotHeldUp      SLUICEBOX_TEST_CRASHES=20
//	slot dropped, invalidated, made anew;
//	publication dropped, by its owner or not      TestTheSlotIs|TestThePublication|TestTheLogIsLost
//	wal_level raised under a relay that polls     TestWALLevelReplica
//	rows set back by SQL; sweeps under load       TestRowsThatAreSetBack|TestASweepSendsNoRowTwice
//	a day of log behind the checkpoint            TestADayOfLog                     SLUICEBOX_TEST_ROWS=1000000
//	a blocked group of more rows than the buffer,
//	kills and crashes while they are parked       TestABlockedGroupIsParked         SLUICEBOX_TEST_ROWS=1000000
//	a receiver is dead past max-hold              TestAReceiverDeadForLong          SLUICEBOX_TEST_OUTAGE=10m
//	… with a buffer smaller than its requests     TestADeadReceiverWithASmallBuffer
//	… killed while rows wait behind those in flight
//	                                              TestKilledWithRowsInFlightBeforeParkedOnes
//	… rows without groups, in parallel            TestDeadReceiverUngroupedParallel SLUICEBOX_TEST_ROWS=200000
//	of three sinks one is dead and one slow       TestThreeSinksOneDeadOneSlow      SLUICEBOX_TEST_ROWS=50000 SLUICEBOX_TEST_OUTAGE=30s
//	a catch-up parks nothing                      TestACatchUpParksNothing          SLUICEBOX_TEST_ROWS=200000
//	a receiver that is slow for minutes           TestASlowReceiverPausesCapture    SLUICEBOX_TEST_OUTAGE=3m
//	a transaction larger than memory              TestOneHugeTransaction|TestOneTransactionOfHugeRows
//	                                                                                SLUICEBOX_TEST_ROWS=1000000
//	a backlog larger than the buffer              TestAFirstStartOverALargeBacklog  SLUICEBOX_TEST_ROWS=2000000
//	parked rows change, odd names of groups       TestParkedRowsThatChange
//	the binlog is purged, begins anew, is another
//	server's; two relays under one server id      TestTheBinlog|TestTwoRelaysOfOneServerID
//	the log goes while rows are parked            TestPollingWithParkedRows         SLUICEBOX_TEST_ROWS=50000
//	the leader of two relays is killed, stopped,
//	frozen, cut off                               TestTwoRelays$                    SLUICEBOX_TEST_CRASHES=50
//	both are replaced, one after the other        TestARollingRestart               SLUICEBOX_TEST_CRASHES=10
//	a standby's probes; its leader's lock is taken
//	                                              TestAStandbySaysSo
//	a takeover before the first row is delivered; a stop whose lock is taken;
//	a silent first host                           TestATakeoverBefore|TestAStopEndsWithTheLock|TestTheFirstHostIsSilent
//	a standby of the database is promoted         TestTheDatabaseIsPromoted|TestWhatAnAsynchronousFailoverLoses
//	two relays on one SQLite file                 TestTwoRelaysOnSQLite
//	a pooler in front of the database             TestAPooler
//	polling only: locked heads, a blocked group   TestPollingOnly
//	a legacy processor on the same table          TestBesideALegacyProcessor
//	a blocked group on SQLite                     TestParkingOnSQLite
//	rows behind a checkpoint are sent again, also while their leader is killed
//	                                              TestReplay|TestMongoReplay
//	what is wrong with a set-up is named and cured
//	                                              TestDoctor
//	MongoDB: real input by pymongo, each form     TestMongoRealInput
//	the relay is killed under load                TestMongoKilledUnderLoad          SLUICEBOX_TEST_CRASHES=100
//	the primary crashes, shuts down, steps down,
//	freezes, in sets of one and of three          TestMongoThePrimary               SLUICEBOX_TEST_CRASHES=30
//	the leader of two relays is killed, stopped,
//	frozen                                        TestMongoTwoRelays                SLUICEBOX_TEST_CRASHES=30
//	the oplog is rolled; a collection is dropped,
//	renamed; documents of 16 MiB                  TestMongoTheOplog|TestMongoTheCollection|TestMongoADocument
//	a server without a replica set becomes one    TestMongoWithoutASet
//	the users of deploy/mongo; what doctor prints TestMongoLeastPrivilege|TestMongoReader|TestMongoDoctor
package blackbox
