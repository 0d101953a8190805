package app

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	mysqlstore "github.com/sluicebox/sluicebox/store/mysql"
)

// sessionHoldersQuery lists the sessions of a PostgreSQL server by holder.
const sessionHoldersQuery = "SELECT datname, usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC;"

// explainRefusedSession explains why a reachable server refused a session for another
// reason than the login. away has the meaning of Finding.Unreachable.
func explainRefusedSession(f *store.Finding, err error) (away, ok bool) {
	if problem, remedy, ok := mysqlstore.ExplainNoSession(err); ok {
		f.Text, f.Remedy = problem, remedy
		return true, true
	}
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	if !errors.As(err, &connect) || !errors.As(connect, &pg) {
		return false, false
	}
	switch pg.Code {
	case "42704", "22023", "55P02": // undefined_object, invalid_parameter_value, cant_change_runtime_param
		f.Text = "server refuses a URL parameter: " + pg.Message
		f.Remedy = "fix or remove it in source.url (or source.stream-url): a parameter unknown to the relay is sent to the server as a setting"
		return false, true
	case "53300": // too_many_connections
		f.Text = "no connection left on the server: " + pg.Message
		f.Remedy = "-- as an administrator: lists the sessions by holder; end unused ones, or raise max_connections (or the CONNECTION LIMIT of the role or database, if the error names it)\n" + sessionHoldersQuery
		return true, true
	}
	return false, false
}
