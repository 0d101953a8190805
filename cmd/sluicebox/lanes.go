package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// laneCommands is `sluicebox lanes …`.
type laneCommands struct {
	List     laneListCommand   `cmd:"" help:"List lanes with rows in memory or on hold; held and failing lanes come first."`
	RetryNow laneRetryCommand  `cmd:"" help:"Retry a waiting lane at once."`
	Skip     laneSkipCommand   `cmd:"" help:"Skip the first row of a lane, which stays or becomes FAILED."`
	Pause    lanePauseCommand  `cmd:"" help:"Hold a lane until it is resumed, also across restarts."`
	Resume   laneResumeCommand `cmd:"" help:"Resume a paused lane."`
}

// groupFlags choose a group.
type groupFlags struct {
	Group   *string `placeholder:"GROUP" xor:"group" help:"The message group."`
	NoGroup bool    `xor:"group" help:"Rows without a group."`
}

// selectedGroup returns nil if no group was chosen.
func (f *groupFlags) selectedGroup() *store.Group {
	switch {
	case f.Group != nil:
		return &store.Group{Name: *f.Group, Valid: true}
	case f.NoGroup:
		return &store.Group{}
	}
	return nil
}

// laneListCommand is `sluicebox lanes list`.
type laneListCommand struct {
	relayFlags
	Outbox string `placeholder:"NAME" help:"Lanes of one outbox."`
	Kind   string `placeholder:"KIND" help:"Lanes of one kind."`
	groupFlags
	State string `placeholder:"STATE" help:"ready, claiming, sending, writing, waiting, stalled, blocked, paused, replaying or spilled."`
	Limit int    `default:"100" placeholder:"N" help:"The most lanes to list. Default: ${default}."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

// Validate is called before Run.
func (c *laneListCommand) Validate() error { return checkLimit(c.Limit) }

func checkLimit(limit int) error {
	if limit < 1 {
		return fmt.Errorf("--limit is %d, must be at least 1", limit)
	}
	return nil
}

// Run lists the lanes of the relay.
func (c *laneListCommand) Run(ctx context.Context, p *program) error {
	client, _, err := c.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.Lanes(ctx, dispatch.LaneFilter{Outbox: c.Outbox, Kind: c.Kind, Group: c.selectedGroup(), State: c.State}, c.Limit)
	if err != nil {
		return relayFailure(err)
	}

	err = p.printList(c.JSON, list, "no lane matches", laneHeader(), tableRows(list.Lanes, laneRow))
	if more := list.Total - len(list.Lanes); err == nil && more > 0 && !c.JSON {
		p.note("%d more; --limit shows them", more)
	}
	return err
}

func laneHeader() []string {
	return []string{"OUTBOX", "KIND", "GROUP", "STATE", "ROWS", "FIRST", "TRIES", "RETRIES", "NEXT", "SINCE", "REASON"}
}

func laneRow(l *dispatch.LaneInfo) []string {
	head, next := "-", "-"
	if l.Head != "" {
		head = quoteCell(l.Head)
	}
	if !l.NextAttempt.IsZero() {
		next = "in " + durationText(time.Until(l.NextAttempt))
	}
	return []string{
		quoteCell(l.Outbox), quoteCell(l.Kind), groupCell(l.Group), l.State, strconv.Itoa(l.Rows + l.Spilled + l.Unwritten), head,
		strconv.Itoa(l.Attempts), strconv.Itoa(l.RetryCount), next, ageText(l.Since, time.Now()), oneLine(laneReason(l)),
	}
}

// laneReason returns the reason why a lane is held or failing, and its replay.
func laneReason(l *dispatch.LaneInfo) string {
	reason := l.Reason
	if reason == "" {
		reason = l.Error
	}
	if l.Job != "" {
		reason = strings.TrimSuffix("replay "+l.Job+": "+reason, ": ")
	}
	return reason
}

// laneFlags name one lane.
type laneFlags struct {
	relayFlags
	Outbox string  `placeholder:"NAME" help:"The lane's outbox. Optional if only one lane matches."`
	Kind   *string `placeholder:"KIND" help:"The kind of the lane's rows. Optional if only one lane matches."`
	groupFlags
	Row  string `placeholder:"ID" help:"The row, if each row without a group has its own lane."`
	JSON bool   `name:"json" help:"Print the resulting lane as JSON."`
}

// Validate is called before Run.
func (f *laneFlags) Validate() error {
	if f.Row != "" && f.Group != nil {
		return errors.New("--row is for rows without a group, not with --group")
	}
	if f.Row == "" && f.selectedGroup() == nil {
		return errors.New("name the lane with --group GROUP, or --no-group for the rows without a group")
	}
	return nil
}

// request returns the lane's name for the relay. Omitted parts are looked up among its
// lanes.
func (f *laneFlags) request(ctx context.Context, p *program, client *admin.Client) (admin.LaneRequest, error) {
	of := dispatch.LaneFilter{Outbox: f.Outbox, Group: &store.Group{}}
	if f.Kind != nil {
		of.Kind = *f.Kind
	}
	if f.Group != nil {
		of.Group = f.selectedGroup()
	}
	var req admin.LaneRequest
	req.Outbox, req.Kind, req.Group, req.RowID = of.Outbox, of.Kind, *of.Group, f.Row

	if f.Outbox != "" && f.Kind != nil {
		return req, nil
	}
	list, err := client.Lanes(ctx, of, maxLanesSearched)
	if err != nil {
		return req, relayFailure(err)
	}

	var fit, single []dispatch.LaneInfo
	for _, l := range list.Lanes {
		if l.Job != "" {
			continue // a replay's lane cannot be operated; pause or cancel the replay
		}
		if l.RowID == f.Row && (f.Kind == nil || l.Kind == *f.Kind) {
			fit = append(fit, l)
		} else if f.Row == "" {
			single = append(single, l)
		}
	}

	switch {
	case len(fit) == 1:
		req.Outbox, req.Kind = fit[0].Outbox, fit[0].Kind
		return req, nil
	case len(fit) > 1:
		if err := printTable(p.stderr, laneHeader(), tableRows(fit, laneRow)); err != nil {
			return req, err
		}
		return req, usageError(fmt.Sprintf("%d lanes match; nothing was done", len(fit)), "choose one with --outbox and --kind")
	case len(single) > 0:
		return req, usageError("each row without a group has its own lane; nothing was done", "choose one with --row ID (sluicebox lanes list --no-group)")
	}

	return req, &commandError{code: exitFailed, problem: "the relay has no such lane; nothing was done",
		remedy: "sluicebox lanes list shows them; a lane without rows can be named with both --outbox and --kind"}
}

// maxLanesSearched limits the lanes searched for an omitted part.
const maxLanesSearched = 10_000

// act runs an action on the lane and prints its new state.
func (f *laneFlags) act(ctx context.Context, p *program, action, reason, done string) error {
	client, _, err := f.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	req, err := f.request(ctx, p, client)
	if err != nil {
		return err
	}

	req.Reason = reason
	lane, err := client.ActOnLane(ctx, action, req)
	if err != nil {
		return laneFailure(err, &req)
	}

	if f.JSON {
		if lane.State == "" {
			return p.json(struct{}{})
		}
		return p.json(lane)
	}

	now := "no rows in memory"
	if lane.State != "" {
		now = fmt.Sprintf("it is %s, with %s", lane.State, rowsText(lane.Rows+lane.Spilled))
	}

	_, err = fmt.Fprintf(p.stdout, "%s: %s; %s\n", laneText(&req), done, now)
	return err
}

// laneText names a lane in a sentence.
func laneText(req *admin.LaneRequest) string {
	text := fmt.Sprintf("lane %s %s %s", quoteCell(req.Outbox), quoteCell(req.Kind), groupCell(req.Group))
	if req.RowID != "" {
		text += " " + quoteCell(req.RowID)
	}
	return text
}

// laneFailure adds the lane's name to the relay's error.
func laneFailure(err error, req *admin.LaneRequest) error {
	var refused *admin.APIError
	if errors.As(err, &refused) && (refused.Status == http.StatusNotFound || refused.Status == http.StatusConflict) {
		return &commandError{code: exitFailed, problem: laneText(req) + ": " + refused.Text, remedy: "sluicebox lanes list shows the lanes and their states"}
	}
	return relayFailure(err)
}

// laneRetryCommand is `sluicebox lanes retry-now`.
type laneRetryCommand struct{ laneFlags }

// Run retries a lane at once.
func (c *laneRetryCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, "retry-now", "", "tried again")
}

// laneSkipCommand is `sluicebox lanes skip`.
type laneSkipCommand struct {
	laneFlags
	Reason string `required:"" placeholder:"TEXT" help:"Reason, recorded for other operators. It becomes the error of a row that had not FAILED."`
}

// Run skips the first row of a lane.
func (c *laneSkipCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, "skip", c.Reason, "skipped its first row")
}

// lanePauseCommand is `sluicebox lanes pause`.
type lanePauseCommand struct {
	laneFlags
	Reason string `required:"" placeholder:"TEXT" help:"Reason, recorded for other operators."`
}

// Run pauses a lane.
func (c *lanePauseCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, "pause", c.Reason, "paused")
}

// laneResumeCommand is `sluicebox lanes resume`.
type laneResumeCommand struct{ laneFlags }

// Run ends a pause.
func (c *laneResumeCommand) Run(ctx context.Context, p *program) error {
	return c.act(ctx, p, "resume", "", "resumed")
}
