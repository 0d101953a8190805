package bench

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
)

// receiverSink is the name of the relay's sink.
const receiverSink = "receiver"

// relayFile is a configuration file of --compare. The relay of its side takes over the
// sections dispatch, checkpoint and tracing, how source reads rows, and of the sink the delivery keys and the
// form of its requests; see sinkTo.
type relayFile struct {
	path     string
	settings *config.Settings
	sink     string // the name of its sink, if it has one
	delivery config.Delivery
	unused   []string // keys of the file that the benchmark sets itself
}

// loadRelayFile reads a configuration file. The file may be that of a real relay: the benchmark
// ignores its database, outboxes and destination, and does not resolve references there.
func loadRelayFile(path string) (*relayFile, error) {
	s, err := config.LoadPart(path, cleanEnvironment(), takesOver)
	if err != nil {
		return nil, err
	}
	f := &relayFile{path: path, settings: s, delivery: s.Dispatch.Delivery}
	ignored := func(given bool, key string) {
		if given {
			f.unused = append(f.unused, key)
		}
	}
	ignored(s.Source.URL != "" || s.Source.StreamURL != "" || s.Source.ServerID != 0, "the database of source")
	ignored(s.FlowCatalyst != nil, "flowcatalyst")
	ignored(len(s.Outboxes) > 0, "outboxes")
	switch names := slices.Sorted(maps.Keys(s.Sinks)); len(names) {
	case 0:
	case 1:
		ignored(true, "the destination of sinks."+names[0])
		f.sink, f.delivery = names[0], s.Sinks[names[0]].Delivery
	default:
		return nil, fmt.Errorf("%s: sinks: has %s, but the benchmark has one outbox with one sink; keep the sink to measure", path, strings.Join(names, ", "))
	}
	return f, nil
}

// sinkTo returns the sink that sends rows to a receiver, without the keys of delivery. It has the form of
// requests of the file's sink, if that sends HTTP requests and the receiver is an HTTP server. What a
// request needs to reach the destination of the file, such as its headers and signatures, is left out.
func (f *relayFile) sinkTo(to *receiver) config.Sink {
	if to.topic != "" {
		return to.sink
	}
	s, own := to.sink, f.settings.Sinks[f.sink]
	switch own.Type {
	case config.SinkWebhook:
		w := &own.Webhook
		s = config.Sink{Type: config.SinkWebhook, MaxRequestBytes: own.MaxRequestBytes, Webhook: webhook.Config{
			URL: sink.Secret(to.url + hookPath), Format: w.Format, ContentType: w.ContentType, MetadataHeaders: w.MetadataHeaders,
			CloudEventsSource: w.CloudEventsSource, CloudEventsType: w.CloudEventsType, CloudEventsSubject: w.CloudEventsSubject,
		}}
	case config.SinkFlowCatalyst:
		s.Wire = own.Wire
	}
	return s
}

// takesOver reports whether the benchmark uses a key of a file. It ignores mistakes in other
// keys.
func takesOver(key string) bool {
	words := strings.FieldsFunc(key, func(r rune) bool { return r == '.' || r == '[' })
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch word(0) {
	case "name", "admin", "ingest", "log", "notices", "flowcatalyst", "outboxes":
		return false
	case "source":
		return !slices.Contains([]string{"url", "stream-url", "server-id"}, word(1))
	case "sinks":
		destination := []string{"type", "url", "api-base-url", "headers", "secrets", "token", "api-token", "oauth", "ca-file", "cert-file", "key-file", "user-agent"}
		return !slices.Contains(destination, word(2))
	}
	return true
}

// relaySettings returns the configuration of a relay: that of the side's file if there is one,
// else the defaults and the options, with the database, the outbox and the receiver of the
// benchmark. The URL of the database is not in it, because it may contain a password.
func (b *bench) relaySettings(p *benchDatabase, admin string, to *receiver) config.Settings {
	s := config.Default()
	s.Source.Mode = "stream"
	s.Dispatch.APIBatchSize, s.Dispatch.MaxConcurrentGroups = b.opts.Batch, b.opts.Senders
	s.Dispatch.Claims = cmp.Or(b.opts.Claims, s.Dispatch.Claims)
	if b.opts.Ungrouped {
		s.Dispatch.Ungrouped = "parallel"
	}
	delivery, toSink := s.Dispatch.Delivery, to.sink
	if f := b.file; f != nil {
		s.Source, s.Dispatch, s.Checkpoint, delivery = f.settings.Source, f.settings.Dispatch, f.settings.Checkpoint, f.delivery
		toSink = f.sinkTo(to)
		s.Tracing = f.settings.Tracing
	}

	s.Name = p.name
	s.Source.URL, s.Source.StreamURL, s.Source.ServerID = "", "", 0
	s.Admin = config.Admin{Listen: admin, Profiling: b.opts.Profile != ""}
	s.Outboxes = []config.Outbox{{Table: p.table.name, Layout: p.layout, Sink: receiverSink}}
	if p.layout == layoutWords {
		s.Outboxes[0].Kind = "EVENT"
	}
	toSink.ErrorDetail, toSink.Delivery = "body", delivery
	s.Sinks = map[string]config.Sink{receiverSink: toSink}
	b.setRoutes(&s)
	return s
}

// writeRelayConfig writes the configuration of a relay and returns the file with the variables
// that set what a printed configuration hides.
func (b *bench) writeRelayConfig(p *benchDatabase, admin string, to *receiver) (file string, environ []string, err error) {
	settings := b.relaySettings(p, admin, to)
	text, err := (&config.Config{Settings: settings}).YAML()
	if err != nil {
		return "", nil, fmt.Errorf("write relay configuration: %w", err)
	}
	file = filepath.Join(b.folder, p.name+".yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", nil, fmt.Errorf("write relay configuration: %w", err)
	}
	environ = []string{config.SourceVariable + "=" + p.url}
	for key, value := range to.secrets {
		environ = append(environ, config.SinkVariable(receiverSink, key)+"="+value)
	}
	if url := settings.Sinks[receiverSink].Webhook.URL; url != "" {
		environ = append(environ, config.SinkVariable(receiverSink, "url")+"="+string(url))
	}
	return file, environ, nil
}

// checkRelayFile checks the values of a file, as the relay would.
func (b *bench) checkRelayFile() error {
	layout := b.opts.Layout
	p := &benchDatabase{name: namePrefix + "check", url: b.opts.Source.Reveal(), layout: layout, table: outboxOf(layout)}
	const unused = "127.0.0.1:1"
	to := &receiver{url: "http://" + unused, sink: config.Sink{Type: config.SinkFlowCatalyst, APIBaseURL: "http://" + unused}}
	file, environ, err := b.writeRelayConfig(p, unused, to)
	if err != nil {
		return err
	}
	_, err = config.Load(file, environ)
	var wrong *config.Error
	if !errors.As(err, &wrong) {
		return err
	}
	// The relay's own file has other lines, another sink, and all keys of dispatch in it.
	var own []config.Problem
	for _, p := range wrong.Problems {
		p.Where = b.file.path
		if key, ofSink := strings.CutPrefix(p.Key, "sinks."+receiverSink+"."); ofSink {
			same := func(other config.Problem) bool { return other.Key == "dispatch."+key }
			if slices.ContainsFunc(wrong.Problems, same) {
				continue
			}
			p.Key = "sinks." + b.file.sink + "." + key
		}
		own = append(own, p)
	}
	return &config.Error{Problems: own}
}

// cleanEnvironment returns the environment without settings of other relays.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "SLUICEBOX_") })
}
