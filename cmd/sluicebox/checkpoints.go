package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// checkpointCommands is `sluicebox checkpoint …`.
type checkpointCommands struct {
	Create checkpointCreateCommand `cmd:"" help:"Create a named checkpoint at the leader's position, to replay from later."`
	List   checkpointListCommand   `cmd:"" help:"List the named checkpoints and the log retained for them."`
	Delete checkpointDeleteCommand `cmd:"" help:"Delete a named checkpoint and the log retained for it."`
}

// checkpointCreateCommand is `sluicebox checkpoint create`.
type checkpointCreateCommand struct {
	requestFlags
	leaderFlags
	Name    string `arg:"" help:"Name of the checkpoint: 1 to 63 of the characters a to z, 0 to 9, _ and -."`
	KeepLog bool   `help:"Retain the database's log from here on, so that a replay includes rows deleted in the meantime. checkpoint.max-kept limits it."`
	JSON    bool   `name:"json" help:"Print the checkpoint as JSON."`
}

// Validate is called before Run.
func (c *checkpointCreateCommand) Validate() error {
	if c.Name != "" { // kong reports a missing name itself
		if err := store.ValidateSavepointName(c.Name); err != nil {
			return err
		}
	}
	return c.requestFlags.Validate()
}

// Run requests a checkpoint and waits until it is created.
func (c *checkpointCreateCommand) Run(ctx context.Context, p *program) error {
	of, closed, err := c.open(p)
	if err != nil {
		return err
	}
	defer closed()
	if err := of.CreateCheckpoint(ctx, c.Name, c.KeepLog); err != nil {
		return requestFailure(err)
	}

	var made *admin.Checkpoint
	noted := ""
	err = c.await(ctx, p, func(ctx context.Context) (done, taken bool, err error) {
		if made, err = admin.FindCheckpoint(ctx, of, c.Name); err != nil {
			return false, false, err
		}
		if made == nil {
			return false, false, &commandError{code: exitFailed, problem: fmt.Sprintf("checkpoint %s: deleted by another request", c.Name)}
		}
		wanted := made.State == string(store.SavepointRequested)
		if wanted && made.Reason != "" && made.Reason != noted {
			noted = made.Reason
			p.note("checkpoint %s: %s", c.Name, oneLine(noted))
		}
		return !wanted, made.Reason != "", nil
	})
	if err != nil {
		return c.unfinishedError(err, "checkpoint "+c.Name, "it will still be created", "sluicebox checkpoint delete "+c.Name+" withdraws it")
	}

	return c.report(p, made)
}

func (c *checkpointCreateCommand) report(p *program, made *admin.Checkpoint) error {
	if c.JSON {
		if err := p.json(made); err != nil {
			return err
		}
	}

	if made.State == string(store.SavepointRefused) {
		return &commandError{code: exitConfig, problem: fmt.Sprintf("checkpoint %s was refused: %s", made.Name, oneLine(made.Reason)),
			remedy: "sluicebox checkpoint delete " + made.Name + " removes it, so that the name is free again"}
	}

	if made.State == string(store.SavepointLogLost) {
		return &commandError{code: exitFailed, problem: fmt.Sprintf("checkpoint %s was created, but its log is no longer retained: %s", made.Name, oneLine(made.Reason)),
			remedy: "a replay from it reads the table; sluicebox checkpoint delete " + made.Name + " frees the name"}
	}

	if c.JSON {
		return nil
	}
	at := "at " + oneLine(made.Position)
	if made.Position == "" {
		at = "without a log position, because the relay polls"
	}

	text := fmt.Sprintf("checkpoint %s: %s, %s, %s", made.Name, made.State, at, made.MadeAt.UTC().Format(time.RFC3339))
	if made.Reason != "" {
		text += "; " + oneLine(made.Reason)
	}

	_, err := fmt.Fprintln(p.stdout, text)
	return err
}

// checkpointListCommand is `sluicebox checkpoint list`.
type checkpointListCommand struct {
	requestFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Run lists the named checkpoints.
func (c *checkpointListCommand) Run(ctx context.Context, p *program) error {
	of, closed, err := c.open(p)
	if err != nil {
		return err
	}
	defer closed()
	list, err := of.Checkpoints(ctx)
	if err != nil {
		return requestFailure(err)
	}

	return p.printList(c.JSON, admin.CheckpointList{Checkpoints: append([]admin.Checkpoint{}, list...)}, "no named checkpoints",
		[]string{"NAME", "STATE", "MADE", "SEQ", "RETAINED", "POSITION", "REASON"}, tableRows(list, checkpointRow))
}

// maxPositionWidth limits the positions in a table, because those of MySQL and MongoDB
// have no maximum length.
const maxPositionWidth = 32

func checkpointRow(c *admin.Checkpoint) []string {
	state, made, seq, retained, position := c.State, "-", "-", "-", "-"
	if c.Deleting {
		state += ", to be deleted"
	}

	if !c.MadeAt.IsZero() {
		made, seq = c.MadeAt.UTC().Format(time.RFC3339), strconv.FormatInt(c.Seq, 10)
	}
	if c.State == string(store.SavepointRetained) {
		retained = sizeText(c.RetainedBytes)
		if c.MaxRetainedBytes > 0 {
			retained += " of " + sizeText(c.MaxRetainedBytes)
		}
	}

	if c.Position != "" {
		position = oneLine(c.Position)
	}
	if runes := []rune(position); len(runes) > maxPositionWidth {
		position = string(runes[:maxPositionWidth-1]) + "…"
	}

	return []string{quoteCell(c.Name), state, made, seq, retained, position, oneLine(c.Reason)}
}

// checkpointDeleteCommand is `sluicebox checkpoint delete`.
type checkpointDeleteCommand struct {
	requestFlags
	leaderFlags
	Name string `arg:"" help:"Name of the checkpoint."`
}

// Run requests the deletion of a checkpoint and waits until it is gone.
func (c *checkpointDeleteCommand) Run(ctx context.Context, p *program) error {
	of, closed, err := c.open(p)
	if err != nil {
		return err
	}
	defer closed()
	if err := of.DeleteCheckpoint(ctx, c.Name); err != nil {
		return requestFailure(err)
	}

	err = c.await(ctx, p, func(ctx context.Context) (done, taken bool, err error) {
		left, err := admin.FindCheckpoint(ctx, of, c.Name)
		return left == nil || !left.Deleting, false, err
	})
	if err != nil {
		return c.unfinishedError(err, "checkpoint "+c.Name, "it will still be deleted", "until then its log is retained")
	}

	_, err = fmt.Fprintf(p.stdout, "checkpoint %s: deleted\n", c.Name)
	return err
}
