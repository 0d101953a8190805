package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// Exit codes; 64 and 78 are EX_USAGE and EX_CONFIG of sysexits.h.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 64
	exitConfig = 78
)

// program is one run of the command with its environment.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	configFiles    []string // looked for where none is named
	signals        <-chan os.Signal
	reloads        <-chan os.Signal // SIGHUP, once onReload was called
	onReload       func()           // takes SIGHUP; nil in tests
	exit           func(code int)   // for the second signal
	relay          backend
}

// commandLine is the grammar of the command line. Each command has its own file.
type commandLine struct {
	Quickstart  quickstartCommand  `cmd:"" help:"Run a demo relay without any setup."`
	Run         runCommand         `cmd:"" help:"Run the relay until a signal ends it."`
	Doctor      doctorCommand      `cmd:"" help:"Check everything a relay needs, with a remedy for each fault."`
	Init        initCommand        `cmd:"" help:"Create the relay's tables and the publication."`
	Actions     actionsCommand     `cmd:"" help:"List what operators did on the running relay: who, when, what and why."`
	Reload      reloadCommand      `cmd:"" help:"Make the running relay read its configuration again."`
	Status      statusCommand      `cmd:"" help:"Show the status of the running relay; exits with 1 if it is not ready."`
	Explain     explainCommand     `cmd:"" help:"Show the life of one row: why it waits, its attempts, its outcome."`
	Verify      verifyCommand      `cmd:"" help:"Prove what arrived: compare the outbox with the receipts of its receiver."`
	Lanes       laneCommands       `cmd:"" help:"List the lanes of the running relay, and retry, skip, pause or resume one."`
	Routes      routeCommands      `cmd:"" help:"List the routes of the running relay, and pause or resume one."`
	Deadletters deadLetterCommands `cmd:"" help:"List FAILED rows, and requeue or discard them."`
	Checkpoint  checkpointCommands `cmd:"" help:"Create, list and delete named checkpoints to replay from."`
	Replay      replayCommands     `cmd:"" help:"Send delivered rows again, from a checkpoint or a time."`
	Tap         tapCommand         `cmd:"" help:"Show rows as they commit, without sending any."`
	Shadow      shadowCommand      `cmd:"" help:"Watch a polling processor and report what a relay would have done."`
	Bench       benchCommand       `cmd:"" help:"Measure a relay on a real database, compared with a minimal program."`
	BenchFloor  floorCommand       `cmd:"" hidden:""`
	Config      configCommands     `cmd:"" help:"Check or describe the configuration."`
	Completion  completionCommand  `cmd:"" help:"Print the completion script of a shell."`
	Complete    completeCommand    `cmd:"" hidden:""`
	Version     versionCommand     `cmd:"" help:"Print the version, as --version does."`
}

// configFlag is the flag that names the configuration.
type configFlag struct {
	File       string `name:"config" short:"c" placeholder:"FILE" help:"Configuration file, - for standard input. Default: $$SLUICEBOX_CONFIG, else ./sluicebox.yaml, else /etc/sluicebox/sluicebox.yaml; without any of them, only the SLUICEBOX_* variables."`
	SourceName string `placeholder:"NAME" help:"With sources in the configuration: the source to act on. With scale: the number of a shard."`
}

// configFiles returns the configuration files to look for if none is named.
func configFiles() []string { return []string{"./sluicebox.yaml", "/etc/sluicebox/sluicebox.yaml"} }

// named returns the configuration file that the flag or the environment names, "" if
// neither does.
func (f configFlag) named(p *program) string { return cmp.Or(f.File, p.variable(config.FileVariable)) }

// file returns the configuration file to read, "" if the variables alone are the
// configuration. found reports that the file was looked for, not named.
func (f configFlag) file(p *program) (path string, found bool, err error) {
	if path = f.named(p); path != "" {
		return path, false, nil
	}
	for _, path := range p.configFiles {
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() || errors.Is(err, fs.ErrPermission) { // the read reports the error
			return path, true, nil
		}
	}
	if config.Overrides(p.environ) {
		return "", false, nil
	}
	return "", false, &config.Error{Problems: []config.Problem{{
		Text: fmt.Sprintf("no configuration: -c FILE is missing; looked for $%s, %s",
			config.FileVariable, strings.Join(p.configFiles, ", ")),
	}}}
}

// load loads the configuration that the flag or the environment names, or the file found. Of several
// sources it is that of the named one.
func (f configFlag) load(p *program) (*config.Config, error) {
	cfg, err := f.read(p)
	if err != nil {
		return nil, err
	}
	return f.chooseOne(cfg)
}

// loadAll is load, but without --source-name it returns the configuration of all sources.
func (f configFlag) loadAll(p *program) (*config.Config, error) {
	cfg, err := f.read(p)
	if err != nil {
		return nil, err
	}
	return f.choose(cfg)
}

// read reads the configuration of all sources.
func (f configFlag) read(p *program) (*config.Config, error) {
	path, _, err := f.file(p)
	if err != nil {
		return nil, err
	}
	return config.Load(path, p.environ)
}

// chooseOne is choose, but of several sources one must be named.
func (f configFlag) chooseOne(cfg *config.Config) (*config.Config, error) {
	if cfg.SourceNames() != nil && f.SourceName == "" {
		return nil, usageError("the configuration has several sources, and none is named", "add --source-name NAME, one of "+sourceNames(cfg))
	}
	return f.choose(cfg)
}

// choose returns the configuration of the named source, or cfg if none is named.
func (f configFlag) choose(cfg *config.Config) (*config.Config, error) {
	names := cfg.SourceNames()
	switch i := slices.Index(names, f.SourceName); {
	case f.SourceName == "", f.SourceName == cfg.SourceName():
		return cfg, nil
	case names == nil:
		return nil, usageError("--source-name: the configuration has one source, without a name", "remove it")
	case i < 0:
		return nil, usageError(fmt.Sprintf("--source-name: unknown source %q", f.SourceName), "the sources are "+sourceNames(cfg))
	default:
		return cfg.Sources()[i], nil
	}
}

// shard returns the shard that --source-name numbers, with scale.
func (f configFlag) shard(cfg *config.Config) (int, error) {
	n, err := strconv.Atoi(f.SourceName)
	if last := cfg.Settings.Scale.Partitions - 1; err != nil || n < 0 || n > last || strconv.Itoa(n) != f.SourceName {
		return 0, usageError(fmt.Sprintf("--source-name: no shard %q", f.SourceName), fmt.Sprintf("with scale it is the number of a shard, 0 to %d", last))
	}
	return n, nil
}

// sourceNames lists the first sources of a configuration.
func sourceNames(cfg *config.Config) string {
	const most = 20
	names := cfg.SourceNames()
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// variable returns the value of an environment variable, or "" if it is not set.
func (p *program) variable(name string) string {
	value := ""
	for _, entry := range p.environ {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// main runs one command line and returns the exit code.
func (p *program) main(args []string) int {
	var line commandLine
	helped := false
	parser, err := kong.New(&line,
		kong.Name("sluicebox"),
		kong.Description("Relays the rows of transactional outboxes, in order and without polling."),
		kong.Writers(p.stdout, p.stderr),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		return p.fail(err)
	}

	parsed, err := parser.Parse(conventional(args))
	if helped {
		return exitOK
	}

	if err != nil {
		p.printProblem(err.Error(), "see "+commandOf(err)+" --help")
		return exitUsage
	}

	ctx, stop := p.untilSignal()
	defer stop()
	parsed.BindTo(ctx, (*context.Context)(nil))
	err = parsed.Run(p)
	if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitOK
	}

	return p.fail(err)
}

// commandOf returns the command whose help explains an error of the command line: the last one
// that the line names.
func commandOf(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		for _, at := range slices.Backward(parse.Context.Path) {
			if at.Command != nil {
				return at.Command.FullPath()
			}
		}
	}
	return "sluicebox"
}

// conventional turns `help COMMAND` into `COMMAND --help`, and `--version` into `version`.
func conventional(args []string) []string {
	switch {
	case len(args) == 0:
		return args
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	case args[0] != "help":
		return args
	}
	command := args[1:]
	if len(command) > 0 && command[0] == "help" {
		command = command[1:]
	}
	if slices.Contains(command, "--help") || slices.Contains(command, "-h") {
		return command
	}
	return append(slices.Clone(command), "--help")
}

// signalEcho is how long signals after the first count as the first. A terminal sends
// SIGINT to the whole process group, and a wrapper such as make or npm forwards it once
// more, so one Ctrl-C arrives twice.
const signalEcho = time.Second

// untilSignal returns a context that the first signal ends. A signal that arrives later
// than signalEcho after it ends the process. stop waits for the signal goroutine.
func (p *program) untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var listener sync.WaitGroup
	listener.Go(func() {
		select {
		case <-done:
			return
		case <-p.signals:
			cancel()
		}
		first := time.Now()
		for {
			select {
			case <-done:
				return
			case <-p.signals:
			}
			if time.Since(first) >= signalEcho {
				p.printProblem("terminated by a second signal", "")
				p.exit(exitFailed)
				return
			}
		}
	})
	return ctx, func() {
		close(done)
		listener.Wait()
		cancel()
	}
}

// logger returns the configured logger to standard error.
func (p *program) logger(l config.Log) *slog.Logger {
	log, _ := p.leveledLogger(l)
	return log
}

// leveledLogger returns the configured logger to standard error, and its level.
func (p *program) leveledLogger(l config.Log) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(l.SlogLevel())
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(jsonWriter{p.stderr}, options)), level
	}
	return slog.New(slog.NewTextHandler(p.stderr, options)), level
}
