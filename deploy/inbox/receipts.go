package inbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/deploy/inbox/chain"
)

// Receipts appends a receipt of each message to a file that was opened with O_APPEND, before the
// receiver answers 2xx. `sluicebox verify` compares them with the outbox. A request without a webhook-id,
// for example a health check, is no message.
func Receipts(file io.Writer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("webhook-id") == "" {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		to := &receipted{ResponseWriter: w, add: func() error {
			return AddReceipt(file, r.Header, body)
		}}
		next.ServeHTTP(to, r)
		to.WriteHeader(http.StatusOK) // if the handler wrote nothing
	})
}

// Gaps calls gap for a message before which another one is missing, by its header Sluicebox-Chain, when
// the receiver answers 2xx. All messages of a group must come to this process.
func Gaps(gap func(*http.Request), next http.Handler) http.Handler {
	messages := chain.New()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := &receipted{ResponseWriter: w, add: func() error {
			if messages.Accept(r.Header.Get("Sluicebox-Chain")) == chain.Gap {
				gap(r)
			}
			return nil
		}}
		next.ServeHTTP(to, r)
		to.WriteHeader(http.StatusOK) // if the handler wrote nothing
	})
}

// AddReceipt appends a receipt. Call it once for each message of a batch, with the headers of each.
func AddReceipt(file io.Writer, h http.Header, body []byte) error {
	sum := sha256.Sum256(body)
	line, err := json.Marshal(map[string]string{
		"id": h.Get("webhook-id"), "group": h.Get("Sluicebox-Group"), "chain": h.Get("Sluicebox-Chain"),
		"at": time.Now().UTC().Format(time.RFC3339Nano), "sum": hex.EncodeToString(sum[:]),
	})
	if err == nil {
		_, err = file.Write(append(line, '\n')) // one write, so that receivers may share the file
	}
	return err
}

// receipted is a ResponseWriter that adds the receipt before the status.
type receipted struct {
	http.ResponseWriter
	add     func() error
	written bool
}

func (w *receipted) WriteHeader(status int) {
	if w.written {
		return
	}
	w.written = status >= 200
	if status >= 200 && status < 300 && w.add() != nil {
		status = http.StatusInternalServerError // the relay sends the message again
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *receipted) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.ResponseWriter.Write(p)
}
