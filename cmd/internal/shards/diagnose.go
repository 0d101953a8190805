package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// maxQuiet is how old the last record of a topic may be. A process that captures writes one each second, and
// clocks may differ.
const maxQuiet = time.Minute

// Diagnosis checks a topic, and the processes on both of its sides. It takes no lock and writes nothing.
type Diagnosis struct {
	cfg     *Config
	options *sluicebox.Options
	capture *Capture
	client  []kgo.Opt
}

// NewDiagnosis returns a Diagnosis. options are those of a relay without shards. It opens no connection.
func NewDiagnosis(cfg *Config, options *sluicebox.Options, client string) (*Diagnosis, error) {
	capture, err := NewCapture(cfg, options, client, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	kafkaOptions, err := cfg.options(client)
	if err != nil {
		return nil, err
	}
	return &Diagnosis{cfg, options, capture, kafkaOptions}, nil
}

// CheckTopic returns the first fault of the topic; see feed.Feeder.
func (d *Diagnosis) CheckTopic(ctx context.Context) error { return d.capture.CheckTopic(ctx) }

// Diagnose implements store.Diagnoser. Before the first start of a process there is no more to say than
// about the topic.
func (d *Diagnosis) Diagnose(ctx context.Context) ([]store.Finding, error) {
	found, err := d.capture.Diagnose(ctx)
	if err != nil || store.CountFaults(found) > 0 {
		return found, err
	}
	client, err := kgo.NewClient(d.client...)
	if err != nil {
		return found, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	now, err := d.sends(ctx)
	if err != nil {
		return found, nil // the check of the database has reported it
	}
	found = append(found, sender(now, shardsOf(d.cfg)))
	for _, check := range []func(context.Context, *kadm.Client) (store.Finding, error){d.captures, d.dispatches, d.behind} {
		f, err := check(ctx, admin)
		if err != nil {
			return found, err
		}
		found = append(found, f)
	}
	return found, nil
}

// sends returns the shards that send.
func (d *Diagnosis) sends(ctx context.Context) (ledger.Shards, error) {
	st, err := d.options.Database.Store(d.settings(d.options.Name))
	if err != nil {
		return ledger.Shards{}, err
	}
	defer st.Close()
	return st.Shards(ctx)
}

func (d *Diagnosis) settings(name string) store.Settings {
	return store.Settings{Name: name, Holder: d.options.Holder, Outboxes: outboxesOf(d.options)}
}

// sender says which kind of process sends.
func sender(now, want ledger.Shards) store.Finding {
	f := store.Finding{Grade: store.GradeAdvice, Subject: "sender"}
	switch {
	case now == want:
		f.Grade, f.Text = store.GradeOK, fmt.Sprintf("the %d shards of topic %s", now.Partitions, now.Topic)
	case now.Former > 0:
		f.Text, f.Remedy = "none, until all shards of the former configuration have ended", "stop the processes that have the former configuration, and keep one with role capture"
	case now.Partitions > 0:
		f.Text = fmt.Sprintf("the %d shards of topic %s, as another configuration says", now.Partitions, now.Topic)
		f.Remedy = "stop the processes that have that configuration; those with this one then take over"
	default:
		f.Text, f.Remedy = "a relay without scale, or none", "stop the processes without scale, and start one with role capture"
	}
	return f
}

// captures says whether a process captures.
func (d *Diagnosis) captures(ctx context.Context, admin *kadm.Client) (store.Finding, error) {
	f := store.Finding{Grade: store.GradeAdvice, Subject: "capture"}
	recent, err := admin.ListOffsetsAfterMilli(ctx, time.Now().Add(-maxQuiet).UnixMilli(), d.cfg.Topic)
	if err != nil {
		return f, fmt.Errorf("list offsets of topic %s: %w", d.cfg.Topic, err)
	}
	f.Text, f.Remedy = fmt.Sprintf("the topic got no record within %s: no process captures", maxQuiet), "start a process with role capture, or see its log"
	recent.Each(func(of kadm.ListedOffset) {
		if of.Err == nil && of.Timestamp > 0 {
			f.Grade, f.Text, f.Remedy = store.GradeOK, "the topic gets records", ""
		}
	})
	return f, nil
}

// dispatches says whether processes dispatch.
func (d *Diagnosis) dispatches(ctx context.Context, admin *kadm.Client) (store.Finding, error) {
	f := store.Finding{Grade: store.GradeAdvice, Subject: "dispatch"}
	groups, err := admin.DescribeGroups(ctx, d.cfg.Topic)
	if err != nil {
		return f, fmt.Errorf("describe consumer group %s: %w", d.cfg.Topic, err)
	}
	of := groups[d.cfg.Topic]
	switch {
	case of.Err != nil:
		f.Text, f.Remedy = fmt.Sprintf("consumer group %s cannot be described: %v", d.cfg.Topic, of.Err), "grant Describe on the consumer group"
	case len(of.Members) == 0:
		f.Text, f.Remedy = fmt.Sprintf("consumer group %s has no members: no process dispatches", d.cfg.Topic), "start a process with role dispatch, or see its log"
	default:
		f.Grade, f.Text = store.GradeOK, fmt.Sprintf("processes with role dispatch: %d", len(of.Members))
	}
	return f, nil
}

// behind says how many records the shards have not read.
func (d *Diagnosis) behind(ctx context.Context, admin *kadm.Client) (store.Finding, error) {
	f := store.Finding{Grade: store.GradeOK, Subject: "shards"}
	ends, err := admin.ListEndOffsets(ctx, d.cfg.Topic)
	if err != nil {
		return f, fmt.Errorf("list offsets of topic %s: %w", d.cfg.Topic, err)
	}
	offsets := make([]int64, d.cfg.Partitions)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelEnds)
	for p := range offsets {
		group.Go(func() (err error) {
			offsets[p], err = d.offset(ctx, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return f, err
	}
	most, at, without := int64(0), 0, 0
	for p, offset := range offsets {
		if offset < 0 {
			without++
			continue
		}
		end, _ := ends.Lookup(d.cfg.Topic, int32(p)) //nolint:gosec // at most MaxPartitions
		if n := end.Offset - offset; n > most {
			most, at = n, p
		}
	}
	f.Text = fmt.Sprintf("at most %d records behind (shard %d)", most, at)
	if without > 0 {
		f.Grade, f.Remedy = store.GradeAdvice, "if this stays, see the logs of the processes with role dispatch"
		f.Text += fmt.Sprintf("; %d of %d have no checkpoint, and take or send a snapshot", without, len(offsets))
	}
	return f, nil
}

// offset returns the offset of a shard's checkpoint, -1 if there is none.
func (d *Diagnosis) offset(ctx context.Context, partition int) (int64, error) {
	st, err := d.options.Database.Store(d.settings(store.ShardName(d.options.Name, partition)))
	if err != nil {
		return -1, err
	}
	defer st.Close()
	at, err := st.LoadCheckpoint(ctx)
	if errors.Is(err, store.ErrNoCheckpoint) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	return kafka.Offset(at.Position)
}
