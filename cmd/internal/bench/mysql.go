package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// mysqlServer is a MySQL or MariaDB server.
type mysqlServer struct {
	session *demodb.SQL
	maria   bool
	info    serverInfo
}

// dialMySQL opens a session with autocommit.
func dialMySQL(ctx context.Context, source string) (*demodb.SQL, error) {
	cfg, err := mystore.ParseURL(source, "sluicebox bench")
	if err != nil {
		return nil, err
	}
	cfg.Params = map[string]string{"time_zone": "'+00:00'", "sql_mode": "'STRICT_ALL_TABLES'"}
	return demodb.OpenMySQL(ctx, cfg)
}

// connectMySQL connects to the server. The URL need not name a database.
func connectMySQL(ctx context.Context, source string) (*mysqlServer, error) {
	if u, err := url.Parse(source); err == nil && strings.Trim(u.Path, "/") == "" {
		if source, err = demodb.InDatabase(source, "information_schema"); err != nil {
			return nil, err
		}
	}
	session, err := dialMySQL(ctx, source)
	if err != nil {
		return nil, err
	}
	s := &mysqlServer{session: session, info: serverInfo{settings: map[string]string{}, syncsCommits: true}}
	if err := s.checkBinlog(ctx); err != nil {
		s.close()
		return nil, err
	}
	s.findProcess(ctx)
	return s, nil
}

// checkBinlog checks that the server has a binlog. The relay checks everything else.
func (s *mysqlServer) checkBinlog(ctx context.Context) error {
	err := s.info.readSettings(ctx, s.session, `SHOW GLOBAL VARIABLES WHERE variable_name IN ('version', 'log_bin', 'sync_binlog', 'gtid_mode',
  'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'innodb_buffer_pool_size', 'innodb_redo_log_capacity', 'innodb_log_file_size',
  'innodb_flush_method', 'binlog_row_image', 'binlog_row_metadata', 'performance_schema')`)
	if err != nil {
		return fmt.Errorf("read server settings: %w", err)
	}

	version := s.info.settings["version"]
	delete(s.info.settings, "version")
	s.maria = strings.Contains(version, "MariaDB")
	s.info.version = "MySQL " + version
	if s.maria {
		s.info.version = "MariaDB " + version
	}
	if s.info.settings["log_bin"] != "ON" || !s.maria && s.info.settings["gtid_mode"] != "ON" {
		return &store.SetupError{
			Problem: "server has no binlog with GTIDs, which the relay reads",
			Remedy:  "set what `sluicebox doctor` lists for one of its databases, or use another server",
		}
	}
	return nil
}

// findProcess reads the server's process id from its file, which few users may read.
func (s *mysqlServer) findProcess(ctx context.Context) {
	var file, folder string
	if err := s.session.QueryRowContext(ctx, "SELECT @@GLOBAL.pid_file, @@GLOBAL.datadir").Scan(&file, &folder); err != nil {
		return
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(folder, file)
	}
	if text, err := os.ReadFile(file); err == nil {
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		s.info.process = localProcess(s.session.Host(), pid, "mysqld", "mariadbd")
	}
}

func (s *mysqlServer) serverInfo() serverInfo { return s.info }
func (s *mysqlServer) close()                 { s.session.Close() }

func (s *mysqlServer) create(ctx context.Context, name, url string, of *outboxTable) (database, error) {
	if _, err := s.session.ExecContext(ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
		const denied, deniedDatabase = 1227, 1044 // ER_SPECIFIC_ACCESS_DENIED_ERROR, ER_DBACCESS_DENIED_ERROR
		if n := demodb.ErrorNumber(err); n == denied || n == deniedDatabase {
			return nil, &store.SetupError{
				Problem: "account may not create databases, which the benchmark does: " + err.Error(),
				Remedy: "run ``GRANT ALL ON `sluicebox\\_bench\\_%`.* TO CURRENT_USER`` with the account in its place, and grant it REPLICATION SLAVE and " +
					"REPLICATION CLIENT on *.*; or use another server",
			}
		}
		return nil, err
	}

	d := &mysqlDatabase{maria: s.maria, digests: s.info.settings["performance_schema"] == "ON", sqlDatabase: sqlDatabase{
		name: name, url: url, table: of, dial: dialMySQL, words: sqlWords{
			id: "LPAD(n, %d, '0')", group: "CONCAT('g', %d + n %% %d)", payload: "CONCAT('%s', %s, ?)", now: "UTC_TIMESTAMP()", one: "(SELECT ? AS n) AS v",
		},
	}}
	if err := d.openTable(ctx, of.create(layouts.MySQL)); err != nil {
		return nil, err
	}
	return d, nil
}

func (s *mysqlServer) drop(ctx context.Context, name string) error {
	return s.session.DropDatabase(ctx, name, demodb.EndTimeout)
}

// mysqlDatabase is a MySQL or MariaDB database.
type mysqlDatabase struct {
	sqlDatabase
	maria   bool
	digests bool // the server counts statements
}

// loadDigits is the maximum number of digits of a load's row count.
const loadDigits = 6

// load implements loader. It keeps completed rows out of the binlog if the account may,
// because they need not be there.
func (d *mysqlDatabase) load(ctx context.Context, r *rowSpan) error {
	if r.completed {
		if _, err := d.session.ExecContext(ctx, "SET SESSION sql_log_bin = 0"); err == nil {
			defer func() { _, _ = d.session.ExecContext(ctx, "SET SESSION sql_log_bin = 1") }() // after it the session loads nothing
		}
	}
	const ten = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL " +
		"SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	number, digits, unit := "", "", 1
	for i := 0; i < loadDigits && unit <= r.last-r.first; i, unit = i+1, unit*10 {
		number += fmt.Sprintf(" + %d * d%d.d", unit, i)
		digits += fmt.Sprintf(", %s AS d%d", ten, i)
	}
	from := "(SELECT 1 AS d) AS one" + digits
	numbers := fmt.Sprintf("(SELECT %d%s AS n FROM %s) AS numbers WHERE n <= %d ORDER BY n", r.first, number, from, r.last)
	_, err := d.session.ExecContext(ctx, d.insert(r, numbers), r.padding)
	return err
}

// flush updates the statistics of the table and writes its pages to disk, the latter only if
// the account may.
func (d *mysqlDatabase) flush(ctx context.Context) error {
	if _, err := d.session.ExecContext(ctx, "ANALYZE TABLE "+d.table.name); err != nil {
		return err
	}
	if _, err := d.session.ExecContext(ctx, "FLUSH TABLES "+d.table.name+" FOR EXPORT"); err != nil {
		return nil //nolint:nilerr // a right that few accounts have
	}
	_, err := d.session.ExecContext(ctx, "UNLOCK TABLES")
	return err
}

// prepareFloor sets the end of the binlog as the start position.
func (d *mysqlDatabase) prepareFloor(ctx context.Context, cfg *floor.Config) error {
	query := "SELECT @@GLOBAL.gtid_executed"
	if d.maria {
		query = "SELECT @@GLOBAL.gtid_binlog_pos"
	}
	return d.session.QueryRowContext(ctx, query).Scan(&cfg.From)
}

// scans returns the number of statements that name the outbox. MySQL counts them unless
// performance_schema is off; on MariaDB it is off by default. A full digest table counts no
// further databases.
func (d *mysqlDatabase) scans(ctx context.Context) (int, error) {
	if !d.digests {
		return 0, errNotMeasured
	}
	var n int
	var full bool
	err := d.session.QueryRowContext(ctx, `
SELECT COALESCE(SUM(IF(schema_name = ? AND digest_text LIKE ?, count_star, 0)), 0), COUNT(*) >= @@performance_schema_digests_size
FROM performance_schema.events_statements_summary_by_digest`, d.name, "%`"+d.table.name+"`%").Scan(&n, &full)
	if err != nil || full {
		return 0, errNotMeasured // the account may not read it
	}
	return n, nil
}

// countStatements implements counter. The database is new, so all its counters belong to the
// run, except those of the load.
func (d *mysqlDatabase) countStatements(context.Context) error {
	if !d.digests {
		return errors.New("performance_schema is off; start the server with performance_schema=ON")
	}
	return nil
}

func (d *mysqlDatabase) statements(ctx context.Context) (string, error) {
	return d.statistics(ctx, `
SELECT CONCAT(count_star, ' calls, ', sum_rows_affected + sum_rows_sent, ' rows, ', sum_rows_examined, ' rows examined, ',
  ROUND(sum_timer_wait / 1e9, 1), ' ms, ', ROUND(sum_lock_time / 1e9, 1), ' ms of them for locks'), digest_text
FROM performance_schema.events_statements_summary_by_digest WHERE schema_name = ? ORDER BY sum_timer_wait DESC LIMIT 30`, d.name)
}
