package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/shards"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ingest"
)

// PartIngest is the server that takes rows, if one is configured. Doctor checks it last.
const PartIngest = "ingest"

// checkIngest checks the tables, the certificates and the address of the server that takes rows.
func (d *doctor) checkIngest(ctx context.Context) {
	cfg, ok := d.cfg.Ingest()
	if !ok {
		return
	}
	timed, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	found, err := d.cfg.DiagnoseIngest(timed)
	for _, f := range found {
		d.add(PartIngest, f, false)
	}
	if err != nil {
		d.addError(PartIngest, "tables", err)
	}
	if host, _, _ := net.SplitHostPort(cfg.Listen); cfg.TLS.CertFile == "" && !store.Loopback(host) {
		d.add(PartIngest, store.Finding{
			Grade: store.GradeAdvice, Subject: "ingest.tls", Text: "other machines can reach " + cfg.Listen + ", and tokens are readable on the network",
			Remedy: "set ingest.tls.cert-file and key-file, or listen on 127.0.0.1 behind a proxy that ends TLS",
		}, false)
	}

	server, err := ingest.New(ingest.Options{Config: cfg, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = server.Listen()
		server.Close()
	}
	switch {
	case err == nil:
		d.addOK(PartIngest, "ingest.listen", cfg.Listen+" is free")
	case queryLeader(ctx, d.cfg.Settings.Admin.Listen) != "":
		d.addOK(PartIngest, "ingest.listen", fmt.Sprintf("in use; a relay already runs on this machine (%v)", err))
	default:
		d.addError(PartIngest, "ingest.listen", err)
	}
}

// PartScale is the topic between capture and dispatch, if one is configured. Doctor checks it after the log.
const PartScale = "scale"

// checkScale checks the topic between capture and dispatch, and the processes on both sides.
func (d *doctor) checkScale(ctx context.Context) {
	scale := d.cfg.Settings.Scale
	if scale == nil {
		return
	}
	options, err := d.cfg.Relay("")
	if err != nil {
		return // checkDatabase has reported it
	}
	by, err := shards.NewDiagnosis(scale, &options, userAgent(d.version))
	if err != nil {
		d.addError(PartScale, "scale", err)
		return
	}
	timed, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	f := store.Finding{Grade: store.GradeFault, Subject: "topic " + scale.Topic}
	switch err := by.CheckTopic(timed); {
	case err == nil, errors.As(err, new(*store.SetupError)):
		d.runChecks(ctx, PartScale, f.Subject, by, nil)
	case shards.IsTopicMissing(err):
		f.Text, f.Remedy = "does not exist", "run `sluicebox init`, which creates it"
		d.add(PartScale, f, false)
	default:
		f.Text, f.Remedy = strings.TrimPrefix(err.Error(), "describe "+f.Subject+": "), "start the brokers, allow connections from this machine, or fix scale.brokers"
		d.add(PartScale, f, true)
	}
}

// adviseRoutes reports routes that are valid, but may not do what they seem to.
func (d *doctor) adviseRoutes(o *config.Outbox) {
	advise := func(remedy, format string, args ...any) {
		d.add(PartConfiguration, store.Finding{Grade: store.GradeAdvice, Subject: "outbox " + o.Name, Text: fmt.Sprintf(format, args...), Remedy: remedy}, false)
	}
	required := false
	for i := range o.Routes {
		r := &o.Routes[i]
		required = required || !r.IsOptional()
		if o.Kind != "" && r.When.Excludes(&route.Rule{Kind: []string{o.Kind}}) {
			advise("change when.kind of the route, or remove the route", "route %s never gets a row: each row is of kind %s", r.Name, o.Kind)
			continue
		}
		for j := range o.Routes[:i] {
			other := &o.Routes[j]
			if other.Sink == r.Sink && !o.FirstMatch() && !other.When.Excludes(&r.When) {
				advise("make the conditions of the routes exclude each other, or write one route for both", "routes %s and %s both go to sink %s: it gets a row that matches both twice", other.Name, r.Name, r.Sink)
			}
		}
	}
	if len(o.Routes) > 0 && !required {
		advise("remove need: optional from the routes that must deliver a row", "each route is optional: a row is COMPLETED with the first route that delivers it, whether the others do or not")
	}
}
