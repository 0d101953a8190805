package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"

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
