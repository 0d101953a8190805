// Command sluicebox relays the rows of transactional outboxes to their receivers.
//
// Results go to standard output, logs and errors to standard error. Exit codes:
//   - 0: success
//   - 1: failed while running
//   - 64: invalid command line
//   - 78: the configuration, a grant or `sluicebox init` fixes it
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/createoutbox"
	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version string

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	reloads := make(chan os.Signal, 1)
	p := program{
		stdin:       os.Stdin,
		stdout:      os.Stdout,
		stderr:      os.Stderr,
		environ:     os.Environ(),
		configFiles: configFiles(),
		signals:     signals,
		reloads:     reloads,
		onReload:    func() { signal.Notify(reloads, syscall.SIGHUP) },
		exit:        os.Exit,
		relay: backend{run: app.Run, shadow: app.Shadow, init: app.Init, script: app.InitScript, deadLetters: app.OpenDeadLetters,
			requests: app.OpenRequests, explain: app.ExplainRow, strayLegs: app.StrayLegs, renameLeg: app.RenameLeg, dropLeg: app.DropLeg, createOutbox: createoutbox.Create, describe: describeTable},
	}
	os.Exit(p.main(os.Args[1:]))
}

// backend holds the functions behind the commands. Tests replace them.
type backend struct {
	run    func(context.Context, app.Options) error
	shadow func(context.Context, app.Options) (*shadow.Report, error)
	init   func(context.Context, *config.Config, *slog.Logger) error
	script func(*config.Config) (string, error)
	// deadLetters opens the FAILED rows. Call closed when done.
	deadLetters func(*config.Config) (letters store.DeadLetters, closed func(), err error)
	// requests opens the named checkpoints and the replays of the relay, or of the named one.
	requests func(cfg *config.Config, relay string) (of admin.Requests, closed func(), err error)
	// explain reads what the database says of a row.
	explain func(ctx context.Context, cfg *config.Config, outbox, id string) (*sluicebox.RowReport, error)
	// strayLegs returns the routes in the relay's tables that the configuration does not name;
	// renameLeg and dropLeg change one while no relay runs.
	strayLegs func(context.Context, *config.Config) ([]store.StrayLeg, error)
	renameLeg func(ctx context.Context, cfg *config.Config, outbox, from, to string) error
	dropLeg   func(ctx context.Context, cfg *config.Config, outbox, route string) (settled int, err error)
	// createOutbox creates an outbox table in the database of a URL.
	createOutbox func(context.Context, config.URL, *layouts.Definition) error
	// describe describes a table of the database of a URL.
	describe func(ctx context.Context, source config.URL, table string) (*store.TableInfo, error)
}
