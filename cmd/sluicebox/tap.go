package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/store"
)

// tapCommand is `sluicebox tap`.
type tapCommand struct {
	configFlag
	Outbox string `placeholder:"NAME" help:"Rows of one outbox."`
	Kind   string `placeholder:"KIND" help:"Rows of one kind."`
	groupFlags
	Limit   int  `placeholder:"N" help:"Stop after this many rows. Default: at Ctrl-C."`
	Payload bool `help:"Also print the payload, at the end of the line."`
	JSON    bool `name:"json" help:"Print one JSON object per line, with the payload."`
}

// Validate is called before Run.
func (c *tapCommand) Validate() error {
	if c.Limit < 0 {
		return fmt.Errorf("--limit is %d, must not be negative", c.Limit)
	}
	return nil
}

// errStopIteration ends a tap after --limit rows.
var errStopIteration = errors.New("stop iteration")

// Run prints rows until the limit or the context's end.
func (c *tapCommand) Run(ctx context.Context, p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}

	outboxes, err := outboxNames(cfg, c.Outbox)
	if err != nil {
		return err
	}

	ctx, end := withOpenOutput(ctx, p.stdout)
	defer end()
	shown := 0
	err = app.Tap(ctx, cfg, p.logger(cfg.Settings.Log), func(it *store.Item) error {
		if !slices.Contains(outboxes, it.Outbox) || !c.matches(it) {
			return nil
		}
		if err := c.print(p.stdout, it); err != nil {
			return err
		}
		if shown++; shown == c.Limit {
			return errStopIteration
		}
		return nil
	})
	if errors.Is(err, errStopIteration) || errors.Is(err, syscall.EPIPE) || errors.Is(context.Cause(ctx), errOutputClosed) {
		return nil
	}

	return err
}

func (c *tapCommand) matches(it *store.Item) bool {
	group := c.selectedGroup()
	return (c.Kind == "" || c.Kind == it.Kind) && (group == nil || *group == it.Group)
}

func (c *tapCommand) print(to io.Writer, it *store.Item) error {
	if c.JSON {
		return writeJSON(to, newTapRow(it), "")
	}
	_, err := io.WriteString(to, tapLine(it, c.Payload))
	return err
}

// tapRow is a row in the output of --json.
type tapRow struct {
	CommittedAt time.Time `json:"committed_at,omitzero"` // by the database's clock
	store.LaneKey
	ID          string `json:"id"`
	PayloadSize int    `json:"payload_size"` // bytes
	admin.Payload
}

func newTapRow(it *store.Item) *tapRow {
	return &tapRow{CommittedAt: it.Committed.UTC(), LaneKey: it.Lane(), ID: it.ID, PayloadSize: it.PayloadSize, Payload: admin.PayloadOf(it.Payload)}
}

// tapTime has a fixed number of digits, so that lines stay aligned.
const tapTime = "2006-01-02T15:04:05.000000Z"

// tapLine formats a row in a line: commit time, outbox, kind, group, id, size.
func tapLine(it *store.Item, payload bool) string {
	fields := []string{
		it.Committed.UTC().Format(tapTime), quoteCell(it.Outbox), quoteCell(it.Kind), groupCell(it.Group), quoteCell(it.ID),
		strconv.Itoa(it.PayloadSize) + " B",
	}
	if payload {
		fields = append(fields, escapePayload(it.Payload))
	}
	return strings.Join(fields, "  ") + "\n"
}

// escapePayload returns a payload in one line, without control characters. The --json
// output decodes to the exact bytes.
func escapePayload(payload []byte) string {
	var b strings.Builder
	for rest := payload; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, rest[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
		rest = rest[n:]
	}
	return b.String()
}

// readerCheckInterval is how often a tap checks whether its output is still open.
const readerCheckInterval = time.Second

// errOutputClosed ends a tap whose output was closed.
var errOutputClosed = errors.New("output closed")

// withOpenOutput returns a context that ends with errOutputClosed once the reader of the
// output is gone. Otherwise the tap would notice only at the next row, and the database
// would retain log until then. The returned function stops the check and waits for it.
func withOpenOutput(ctx context.Context, out io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f, ok := out.(*os.File)
	if !ok {
		return ctx, func() { cancel(nil) }
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(readerCheckInterval)
		defer tick.Stop()
		for !isOutputClosed(f) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errOutputClosed)
	}()
	return ctx, func() { cancel(nil); <-done }
}
