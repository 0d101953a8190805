package blackbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// shotsVariable names a directory for pictures of the page, those of deploy/console.
const shotsVariable = "SLUICEBOX_TEST_SHOTS"

// browserPage is a tab of a browser with the page of a relay.
type browserPage struct {
	t   *testing.T
	ctx context.Context
}

// openBrowser starts a browser, which ends with the test. An error of the page's scripts fails it.
func openBrowser(t *testing.T) *browserPage {
	t.Helper()
	program := filepath.Join(servers.Libraries(t, "browser"), "browser")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1280, 900))
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, cancel := chromedp.NewContext(allocated, chromedp.WithErrorf(func(string, ...any) {})) // events of a newer browser
	limited, end := context.WithTimeout(ctx, testTimeout)
	t.Cleanup(func() { end(); cancel(); stop() })
	chromedp.ListenTarget(limited, func(event any) {
		if e, ok := event.(*runtime.EventExceptionThrown); ok {
			t.Errorf("the page's script: %v", e.ExceptionDetails)
		}
	})
	return &browserPage{t, limited}
}

// do runs actions in the browser.
func (p *browserPage) do(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		var text string
		seen, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), 5*time.Second)
		defer cancel()
		_ = chromedp.Run(seen, chromedp.Evaluate(`document.body.innerText`, &text))
		p.t.Fatalf("%v; the page shows:\n%s", err, text)
	}
}

// sees waits until an expression of JavaScript is true.
func (p *browserPage) sees(expression string) {
	p.t.Helper()
	p.do(chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(testTimeout/2)))
}

// shows waits until the page's main part has a text.
func (p *browserPage) shows(text string) {
	p.t.Helper()
	p.sees(fmt.Sprintf(`document.getElementById("main").innerText.includes(%q)`, text))
}

// press clicks the button, link or tab that has a text, in the open dialog if there is one.
func (p *browserPage) press(text string) {
	p.t.Helper()
	p.sees(fmt.Sprintf(`(() => {
		const within = document.querySelector("dialog[open]") ?? document;
		const found = [...within.querySelectorAll("button, nav a")].find((b) => b.innerText.trim().startsWith(%q) && !b.disabled);
		found?.click();
		return Boolean(found);
	})()`, text))
}

// signIn signs in with a token, once the page asks for one.
func (p *browserPage) signIn(token string) {
	p.t.Helper()
	p.do(chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", token+"\r"))
	p.sees(`document.querySelectorAll("#nav a").length > 0`)
}

// shoot takes a picture if the test makes pictures.
func (p *browserPage) shoot(name, scheme string, width, height int64) {
	p.t.Helper()
	dir := os.Getenv(shotsVariable)
	if dir == "" {
		return
	}
	var png []byte
	p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}),
		chromedp.EmulateViewport(width, height), chromedp.CaptureScreenshot(&png), chromedp.EmulateViewport(1280, 900))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

// The page of a relay in a browser: the figures move, a dead letter is requeued, the head of a lane is
// skipped by keyboard, a replay is started and ends. A viewer sees that and may not act; a standby says so.
// Payloads with markup stay texts. With pictures of the page in a directory:
//
//	SLUICEBOX_TEST_SHOTS=/tmp go test -v -run TestConsole ./cmd/internal/blackbox
func TestConsole(t *testing.T) {
	t.Parallel()
	rest := "dispatch: {on-failed: block, max-retries: 0}\n"
	aPostgres(t, rest, func(s *scene) {
		p := openBrowser(s.t)
		s.config = strings.Replace(s.config, "admin: {listen: ADMIN}", "admin: {listen: ADMIN, token: op-token, viewer-token: view-token}", 1)
		if os.Getenv(shotsVariable) != "" {
			s.config = strings.Replace(s.config, "name: "+nameFor(s.database), "name: shop", 1)
		}
		bad := []string{numbered(7), numbered(8)}
		poison(s.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte(`<img src=x onerror="document.title='owned'">`)}, bad...)
		r := s.run()
		s.number(1, 200, "i % 10")

		p.do(chromedp.Navigate(r.admin))
		p.signIn("op-token")
		p.shows("Commit → delivered")
		p.sees(`/in the last hour/.test(document.body.innerText) && /Delivered\s*[1-9]/.test(document.body.innerText)`)
		s.to.Script(nil)

		p.press("Lanes")
		p.shows("blocked")
		p.shoot("lanes-dark", "dark", 1280, 620)
		p.do(chromedp.Click(`main td a`)) // the head of the first lane
		p.shows("It is FAILED")
		p.shows("let its group pass it:")
		p.shows("sluicebox deadletters requeue " + numbered(7))
		p.shows("rejected")
		p.shoot("row-light", "light", 1280, 620)
		p.shoot("row-phone", "dark", 390, 844)
		p.skipsByKeyboard()

		p.press("Dead letters")
		p.shows("2 FAILED rows")
		p.press("Payload")
		p.shows(`"id": "00000000000`)
		p.shoot("deadletters-light", "light", 1280, 620)
		p.press("Requeue all that match")
		p.press("Requeue 2")
		p.shows("No FAILED row matches.")

		p.press("Replays")
		p.press("Start a replay")
		p.sees(`document.querySelector("dialog[open]") !== null`)
		p.press("Start")
		p.shows("200 sent")
		p.press("Action log")
		p.shows("we know why")
		p.shows("deadletters/requeue")
		p.shoot("actions-light", "light", 1280, 620)
		p.press("Configuration")
		p.shows("viewer-token")
		p.sees(`!document.body.innerText.includes("op-token") && document.title.startsWith("Configuration")`)
		p.press("Overview")
		p.sees(`document.querySelector(".spark") !== null`)
		s.writeForPictures()
		p.shoot("overview-light", "light", 1280, 860)
		p.shoot("overview-dark", "dark", 1280, 860)
		p.shoot("overview-phone", "light", 390, 844)

		p.press("Sign out")
		p.signIn("view-token")
		p.shows("Routes")
		p.sees(`![...document.querySelectorAll("main button")].some((b) => /Pause|Resume/.test(b.innerText))`)
		p.sees(`fetch("/api/v1/replays", {method: "POST", body: "{}"}).then(async (r) => r.status === 403 && (await r.json()).error.includes("a viewer may not act"))`)

		standby := start(s.t, s.config)
		standby.waitFor("standing by")
		p.standsBy(standby.admin, numbered(1))
	})
}

// writeForPictures writes rows for a minute if the test makes pictures, so that charts have curves.
func (s *scene) writeForPictures() {
	if os.Getenv(shotsVariable) == "" {
		return
	}
	for i := range 120 {
		from := 1000 + 200*i
		s.number(from, from+60+i%40, "i % 10")
		time.Sleep(500 * time.Millisecond)
	}
}

// key presses a key.
func (p *browserPage) key(key string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(key))
}

// tabTo presses the tab key until the focus is on an element with a text. Each element before it must
// show that it has the focus.
func (p *browserPage) tabTo(text string) {
	p.t.Helper()
	for range 40 {
		p.key("\t")
		var on struct {
			Text    string
			Visible bool
		}
		p.do(chromedp.Evaluate(`(() => {
			const on = document.activeElement, at = on.getBoundingClientRect(), style = getComputedStyle(on);
			return {text: on.innerText, visible: at.left >= 0 && at.width > 0 && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0};
		})()`, &on))
		if !on.Visible {
			p.t.Fatalf("the focus on %q is not visible", on.Text)
		}
		if strings.HasPrefix(on.Text, text) {
			return
		}
	}
	p.t.Fatalf("the tab key does not reach %q", text)
}

// skipsByKeyboard goes to the lanes, and skips the head of one, without the mouse.
func (p *browserPage) skipsByKeyboard() {
	p.t.Helper()
	const noDialog = `!document.querySelector("dialog")`
	p.do(chromedp.Evaluate(`document.activeElement.blur()`, nil))
	p.key("?")
	p.sees(`document.querySelector("dialog[open]")?.innerText.includes("open a page")`)
	p.key(kb.Escape)
	p.sees(noDialog)
	p.key("g")
	p.key("l")
	p.sees(`document.querySelector("main td .badge")?.innerText === "blocked"`)
	p.key("/")
	p.sees(`document.activeElement.matches("main select")`)

	p.do(chromedp.Reload())
	p.sees(`document.querySelector("main td .badge")?.innerText === "blocked"`)
	p.tabTo("Skip to content")
	p.key(kb.Enter)
	p.sees(`document.querySelector("h1").innerText === "Lanes" && document.activeElement.id === "main"`)
	p.tabTo("Skip head")
	p.key(kb.Enter)
	p.sees(`document.activeElement.matches('dialog [name="reason"]')`)
	p.shoot("dialog-phone", "dark", 390, 844)
	p.do(chromedp.Evaluate(`document.querySelector('[data-key^="skip "]').dataset.old = ""; document.dispatchEvent(new Event("visibilitychange"))`, nil)) // a poll
	p.sees(`!document.querySelector("[data-old]")`)
	p.key(kb.Escape)
	p.sees(noDialog + ` && document.activeElement.innerText === "Skip head"`)
	p.key(kb.Enter)
	p.sees(`document.activeElement.matches('dialog [name="reason"]')`)
	p.do(chromedp.SendKeys(`dialog [name="reason"]`, "we know why\r"))
	p.sees(noDialog)
}

// standsBy looks at the page of a standby, which explains a row and cannot act.
func (p *browserPage) standsBy(address, id string) {
	p.t.Helper()
	p.do(chromedp.Navigate(address))
	p.signIn("op-token")
	p.shows("This relay stands by. The leader is ")
	p.shoot("standby-light", "light", 1280, 620)
	p.press("Why a row waits")
	p.sees(`document.querySelector('[name="outbox"]').value === "outbox_events"`)
	p.do(chromedp.SendKeys(`[name="id"]`, id+"\r"))
	p.shows("The receiver accepted it.")
	p.shoot("standby-row-dark", "dark", 1280, 620)
	for page, says := range map[string]string{"Lanes": "Only the leader has lanes", "Dead letters": "sluicebox deadletters", "Replays": "sluicebox replay", "Action log": "The leader's page has the log"} {
		p.press(page)
		p.shows(says)
		p.sees(`document.querySelectorAll("main button").length === 0`)
	}
}
