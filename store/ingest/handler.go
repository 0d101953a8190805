package ingest

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/store/outbox"
)

// Paths of the routes.
const (
	PostboxPath = "/api/v1/postbox/ingest"
	RowsPath    = "/api/v1/ingest/" // and the name of an outbox
)

// routes returns the handler of all requests.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+PostboxPath, s.handler(s.postbox))
	mux.HandleFunc("POST "+RowsPath+"{outbox}", s.handler(s.rows))
	return mux
}

// request is a request of a client, with the memory that it holds.
type request struct {
	*http.Request
	client  *Client
	held    reservation
	control *http.ResponseController
}

// handler authenticates a request, answers it with handle, and measures it.
func (s *Server) handler(handle func(r *request) (answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		of := request{Request: r, client: s.authenticate(r), held: reservation{of: s.memory}, control: http.NewResponseController(w)}
		defer of.held.release()
		a, err := answer{}, error(&fault{status: http.StatusUnauthorized, text: "Authorization: no client has this token or certificate; send Bearer and the token of one"})
		if of.client != nil {
			a, err = handle(&of)
		}
		if err != nil {
			a = failed(err)
		}
		a.write(w, s.closing.Err() != nil)
		s.observer.IngestAnswered(a.status, time.Since(began))
	}
}

// postbox takes one message for the first postbox of the client.
func (s *Server) postbox(r *request) (answer, error) {
	t, err := s.postboxOf(r.client)
	if err != nil {
		return answer{}, err
	}
	all, err := s.take(r, t, decodePostbox)
	if err != nil {
		return answer{}, err
	}
	return oneResult(all[0]), nil
}

// postboxOf returns the outbox of a client that has the layout of a postbox.
func (s *Server) postboxOf(of *Client) (*target, error) {
	for _, name := range of.Outboxes {
		if t := s.targets[name]; t.Layout.Name == postboxLayout {
			return t, nil
		}
	}
	for i := range s.cfg.Outboxes {
		if s.cfg.Outboxes[i].Layout.Name == postboxLayout {
			return nil, &fault{status: http.StatusForbidden, text: "client " + of.Name + ": may write no postbox; add one to its outboxes"}
		}
	}
	return nil, &fault{status: http.StatusNotFound, text: "postbox: no outbox has the layout postbox"}
}

// rows takes a list of rows for the outbox of the path.
func (s *Server) rows(r *request) (answer, error) {
	name := r.PathValue("outbox")
	if s.cfg.outbox(name) == nil {
		return answer{}, &fault{status: http.StatusNotFound, text: fmt.Sprintf("outbox %q: unknown", name)}
	}
	if !r.client.mayWrite(name) {
		return answer{}, &fault{status: http.StatusForbidden, text: fmt.Sprintf("client %s: may not write outbox %s; add it to its outboxes", r.client.Name, name)}
	}
	t := s.targets[name]
	all, err := s.take(r, t, func(body []byte) ([]outbox.Row, error) {
		return decodeRows(body, len(t.Layout.GroupColumns()))
	})
	if err != nil {
		return answer{}, err
	}
	return manyResults(all), nil
}

// take reads the rows of a request and writes them. The results are by position.
func (s *Server) take(r *request, t *target, decode func(body []byte) ([]outbox.Row, error)) ([]result, error) {
	if err := s.ready(r.Context(), t); err != nil {
		return nil, err
	}
	body, err := s.readBody(r)
	if err != nil {
		return nil, err
	}
	rows, err := decode(body)
	if err != nil {
		return nil, err
	}
	if err := s.check(r.client, t, rows); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil { // again, because the body may have taken long
		return nil, err
	}
	written, err := t.batcher.submit(rows)
	if err != nil {
		return nil, writeFault(err)
	}
	all := make([]result, len(rows))
	for i := range rows {
		all[i] = resultOf(&rows[i], &written[i])
	}
	return all, nil
}

// open returns a fault while the server ends.
func (s *Server) open() error {
	if s.closing.Err() != nil {
		return &fault{status: http.StatusServiceUnavailable, retryAfter: retryUnavailable, text: "server: shutting down; repeat the request"}
	}
	return nil
}

// ready returns a fault if the outbox takes no rows now, before the body is read.
func (s *Server) ready(ctx context.Context, t *target) error {
	if t.progress != nil && t.progress.lagging(ctx) {
		return &fault{status: http.StatusTooManyRequests, retryAfter: retryLagging,
			text: fmt.Sprintf("outbox %s: rows wait for their delivery for more than %s; repeat the request later", t.Name, s.cfg.MaxLag)}
	}
	return s.open()
}

// check returns a fault if the client may not send one of the rows.
func (s *Server) check(of *Client, t *target, rows []outbox.Row) error {
	for i := range rows {
		if size := int64(len(rows[i].Payload)); size > s.cfg.MaxPayload {
			return &fault{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("row %d: payload of %d bytes; the limit is %d", i, size, s.cfg.MaxPayload)}
		}
		if !of.maySend(t.Outbox, rows[i].Group) {
			return &fault{status: http.StatusForbidden, text: fmt.Sprintf("row %d: client %s may not write this tenant; add it to its tenants", i, of.Name)}
		}
	}
	return nil
}

// writeFault is the answer to rows whose write failed. Whether the table has them is unknown.
func writeFault(error) error {
	return &fault{status: http.StatusServiceUnavailable, retryAfter: retryUnavailable, text: "database: not available; repeat the request with the same ids"}
}

// write writes the rows of a batch. It logs when writes begin to fail, and when they work again.
func (s *Server) write(ctx context.Context, t *target, rows []outbox.Row) ([]outbox.Written, error) {
	began := time.Now()
	written, err := s.writer.Write(ctx, t.Outbox, rows)
	if err != nil {
		if s.writes.Swap(false) {
			s.log.Warn("ingest write failed; clients repeat", "outbox", t.Name, "rows", len(rows), "error", err)
		}
		return nil, err
	}
	if !s.writes.Swap(true) {
		s.log.Info("ingest writes again", "outbox", t.Name)
	}
	for i := len(rows) - 1; i >= 0 && t.progress != nil; i-- {
		if w := &written[i]; w.Err == nil && !w.Conflict && !w.Repeated {
			t.progress.wrote(rows[i].ID)
			break
		}
	}
	s.observer.IngestBatch(t.Name, rows, written, time.Since(began))
	return written, nil
}
