// The frame of the page: login, navigation, and the poll of the page that is shown.

import { base, get, post, forget } from "./api.js";
import { ask, badge, button, el, replace } from "./dom.js";
import { loginForm } from "./login.js";
import { overview } from "./overview.js";
import { lanes } from "./lanes.js";
import { rowPage } from "./row.js";
import { deadLetters } from "./deadletters.js";
import { replays } from "./replays.js";
import { actions, configuration } from "./records.js";

const pollInterval = 2000; // milliseconds
const pages = [
  { path: "", key: "o", title: "Overview", view: overview },
  { path: "lanes", key: "l", title: "Lanes", view: lanes, count: (s) => s.lanes_total },
  { path: "row", key: "w", title: "Why a row waits", view: rowPage },
  { path: "deadletters", key: "d", title: "Dead letters", view: deadLetters },
  { path: "replays", key: "r", title: "Replays", view: replays },
  { path: "actions", key: "a", title: "Action log", view: actions },
  { path: "config", key: "c", title: "Configuration", view: configuration },
];
const top = document.getElementById("top"), nav = document.getElementById("nav"), main = document.getElementById("main");

// app is what the pages share.
const app = { session: null, status: null, may: () => app.session?.role === "operator" && app.status?.is_leader === true, refresh: () => poll() };
let shown = null; // the page, its update and its node
let timer = 0, running = false, again = false;

const current = () => pages.find((p) => p.path === location.hash.replace(/^#\/?/, "").split("?")[0]) ?? pages[0];

function open() {
  const page = current();
  document.title = `${page.title} · Sluicebox`;
  const body = el("div", {});
  const { head = [], update } = page.view(app, body);
  shown = { page, update, body };
  main.replaceChildren(el("h1", {}, page.title), ...[head].flat(), body);
  poll();
}

function frame(problem) {
  const s = app.status;
  const role = !s ? badge("plain", "connecting") : problem ? badge("bad", "no answer") : s.is_leader ? badge(s.ready ? "good" : "bad", s.ready ? "leader" : "leader, not ready") : badge("warn", "standby");
  const who = app.session;
  replace(top,
    el("div", { class: "brand" }, el("img", { src: "/console/icon.svg", alt: "" }), s ? s.name : "Sluicebox"), base && el("a", { href: "/" }, "All sources"), role,
    s?.is_leader && badge("plain", `epoch ${s.epoch}`), s?.is_leader && s.mode && badge("plain", s.mode), el("span", { class: "space" }),
    who && el("span", { class: "muted" }, who.name === "local" ? "no token set" : who.name === who.role ? who.name : `${who.name}, ${who.role}`),
    who && who.name !== "local" && button("Sign out", "sign-out", async () => { await post("session/end"); location.reload(); }));
  replace(nav, pages.map((p) => {
    const n = s && p.count?.(s);
    return el("a", { href: `#/${p.path}`, "data-key": p.path || "overview", "aria-current": p === shown?.page ? "page" : null, title: `g ${p.key}` }, p.title, n > 0 && el("span", { class: "count" }, n));
  }), el("div", { class: "keys" }, el("kbd", {}, "g"), " then a letter opens a page; ", el("kbd", {}, "?"), " lists the keys"));
}

async function poll() {
  if (running) { again = true; return; }
  clearTimeout(timer);
  if (document.hidden || !app.session) return;
  running = true;
  const page = shown;
  try {
    app.status = await get("status");
    await page.update();
    frame();
    main.querySelector(":scope > .notice.lost")?.remove();
  } catch (error) {
    if (error.status === 401) {
      running = false;
      login();
      return;
    }
    frame(true);
    main.querySelector(":scope > .notice.lost")?.remove();
    main.querySelector("h1")?.after(el("div", { class: "notice bad lost", role: "alert" }, `No fresh figures: ${error.message}`));
  }
  running = false;
  timer = setTimeout(poll, again ? 0 : pollInterval);
  again = false;
}

function login() {
  app.session = app.status = shown = null;
  forget();
  replace(top, el("div", { class: "brand" }, el("img", { src: "/console/icon.svg", alt: "" }), "Sluicebox"));
  replace(nav);
  loginForm(main, (session) => { app.session = session; enter(); },
    el("p", { class: "muted" }, "The operator token is admin.token of the configuration. admin.viewer-token only reads. admin.tokens may have one of yours."));
}

function enter() {
  frame();
  open();
}

const keys = [["g o / l / w / d / r / a / c", "open a page"], ["/", "go to the first filter"], ["?", "this list"], ["Esc", "close a dialog"]];
let pending = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !app.session || document.querySelector("dialog[open]") || event.target.closest("input, select, textarea")) return;
  const page = pending && pages.find((p) => p.key === event.key);
  pending = event.key === "g" && !pending;
  if (page) location.hash = `#/${page.path}`;
  else if (event.key === "/") {
    const first = main.querySelector("input, select");
    if (first) { event.preventDefault(); first.focus(); }
  } else if (event.key === "?") ask({ title: "Keys", text: keys.map(([k, what]) => `${k}: ${what}`).join(" · "), action: "Close", act: () => true });
});
// The hash names a page, so the link to the content must not change it.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { if (app.session) { enter(); main.focus({ preventScroll: true }); } });
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

try {
  app.session = await get("session");
  enter();
} catch {
  login();
}
