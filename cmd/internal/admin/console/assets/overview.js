import { get, post } from "./api.js";
import { ago, ask, badge, button, bytes, duration, el, empty, number, panel, replace, sparkline, table, tile, toast } from "./dom.js";

const fewest = 30; // points of a chart, so that the first ones are no mere dots

// checksOf lists what keeps the relay from being ready, and warnings.
const checksOf = (s) => s.checks.filter((c) => !c.ok || c.warning).map((c) =>
  el("div", { class: `notice ${c.ok ? "" : "bad"}`, role: "alert" }, el("strong", {}, c.name), `: ${c.detail || "failed"}`));

function standby(s) {
  return el("div", { class: "notice" }, el("strong", {}, "This relay stands by. "),
    s.leader ? `The leader is ${s.leader}: open its page to act. ` : "No leader is known at the moment. ",
    "From here, nothing is changed; the commands ", el("span", { class: "mono" }, "sluicebox deadletters"), " and ", el("span", { class: "mono" }, "sluicebox replay"),
    " also go through the database.");
}

function tiles(s, f) {
  const rate = s.sinks.reduce((sum, k) => sum + k.delivered_per_second["10s"], 0);
  const used = s.source.retained_bytes, limit = s.source.retained_limit_bytes;
  const open = s.sinks.flatMap((k) => k.breaker_open.map((b) => `${k.name}: ${b.endpoint || "all"}`));
  const whole = f.whole;
  return el("div", { class: "tiles" },
    tile("Delivered", [number(rate), el("small", {}, " rows/s")], `${number(whole.rows)} in the last hour`),
    tile("Commit → delivered", duration(whole.p50), `p50 · p99 ${duration(whole.p99)}`),
    tile("Lag", s.lag.rows ? duration(s.lag.seconds) : "none", `${number(s.lag.rows)} rows wait`),
    tile("Retained log", bytes(used), limit ? el("progress", { class: `bar ${used > limit * 0.8 ? "warn" : ""}`, max: limit, value: used ?? 0, "aria-label": "Retained log against the limit" }) : "", limit ? `limit ${bytes(limit)}` : "no log to retain"),
    tile("Circuit breakers", open.length ? badge("bad", `${open.length} open`) : badge("good", "all closed"), open.slice(0, 2).join(", ")),
    tile("Lanes that wait", s.lanes_total ? el("a", { href: "#/lanes" }, number(s.lanes_total)) : "none", `up ${duration(s.uptime_seconds)}`));
}

function charts(f) {
  const list = f.figures, rates = list.map((p) => p.rows / f.interval_seconds);
  const before = Array(Math.max(0, fewest - list.length)).fill(null), top = Math.max(0, ...rates), slow = Math.max(0, ...list.map((p) => p.p99 ?? 0));
  const axis = el("div", { class: "axis" }, el("span", {}, list.length ? `${duration(Math.max(fewest, list.length) * f.interval_seconds)} ago` : ""), el("span", {}, "now"));
  const none = el("div", { class: "muted" }, "The first figures come within 10 seconds.");
  return el("div", { class: "charts" },
    el("div", {}, el("div", { class: "legend" }, el("span", {}, el("i"), `rows/s, at most ${number(top)}`)), list.length ? [sparkline("Rows delivered per second over the last hour", [{ values: [...before, ...rates], kind: "area" }]), axis] : none),
    el("div", {}, el("div", { class: "legend" }, el("span", {}, el("i"), "p50"), el("span", {}, el("i", { class: "second" }), `p99, at most ${duration(slow)}`)),
      list.length ? [sparkline("Time from commit to delivered over the last hour", [{ values: [...before, ...list.map((p) => p.p50)] }, { values: [...before, ...list.map((p) => p.p99)], kind: "second" }]), axis.cloneNode(true)] : none));
}

const stateBadge = (state) => badge({ active: "good", paused: "warn", blocked: "bad", "breaker open": "bad" }[state] ?? "plain", state);
const routeTitle = (r) => r.route ? `${r.outbox} → ${r.route}` : r.outbox;
const routePath = (r) => `routes/${encodeURIComponent(r.outbox)}${r.route ? `/${encodeURIComponent(r.route)}` : ""}`;

async function pauseRoute(app, r) {
  const done = await ask({
    title: `Pause ${routeTitle(r)}`, text: "Its rows wait until it is resumed, also across restarts.", action: "Pause", danger: true,
    fields: [{ name: "reason", label: "Reason, for other operators", required: true, maxlength: 500 }], act: ({ reason }) => post(`${routePath(r)}/pause`, { reason }),
  });
  if (done) { toast(`${routeTitle(r)} is paused`); app.refresh(); }
}

async function resumeRoute(app, r) {
  try {
    await post(`${routePath(r)}/resume`);
    toast(`${routeTitle(r)} is resumed`);
  } catch (error) { toast(error.message, true); }
  app.refresh();
}

function routes(app, list) {
  const rows = list.map((r) => [
    el("div", {}, el("strong", {}, routeTitle(r)), el("div", { class: "sub" }, r.need === "optional" ? "optional" : "")), r.sink,
    el("div", {}, stateBadge(r.state), r.reason && el("div", { class: "sub" }, r.reason)),
    number(r.lag.rows), duration(r.lag.rows ? r.lag.seconds : 0), r.delivered_at ? ago(r.delivered_at) : "–",
    app.may() && el("div", { class: "row" }, r.state === "paused" ? button("Resume", `resume ${routeTitle(r)}`, () => resumeRoute(app, r)) : button("Pause", `pause ${routeTitle(r)}`, () => pauseRoute(app, r))),
  ]);
  return panel("Routes", null, rows.length ? table([["Outbox"], ["Sink"], ["State"], ["Waiting", "num"], ["Lag", "num"], ["Last delivery"], ["", "acts"]], rows) : empty("No routes are known yet."));
}

function sinks(list) {
  const rows = list.map((k) => [
    el("strong", {}, k.name),
    k.breaker_open.length ? k.breaker_open.map((b) => el("div", {}, badge("bad", "breaker open"), el("div", { class: "sub" }, `${b.endpoint} ${b.error}`))) : badge("good", "breaker closed"),
    number(k.waiting), number(k.in_flight), bytes(k.bytes), number(k.delivered_per_second["1m"]), number(k.retried_per_second["1m"]), number(k.failed_per_second["1m"]),
  ]);
  return panel("Destinations", el("span", { class: "muted" }, "rates over a minute"),
    rows.length ? table([["Sink"], ["Breaker"], ["Waiting", "num"], ["In flight", "num"], ["Memory", "num"], ["Delivered/s", "num"], ["Retried/s", "num"], ["Failed/s", "num"]], rows) : empty("No session runs."));
}

export function overview(app, body) {
  return {
    update: async () => {
      const figures = await get("figures"), s = app.status;
      const listed = s.is_leader ? (await get("routes").catch(() => ({ routes: s.routes }))).routes : [];
      if (!s.is_leader) return replace(body, standby(s), checksOf(s));
      replace(body, checksOf(s), tiles(s, figures), panel("Last hour", el("span", { class: "muted" }, `10 s a point`), el("div", { class: "body" }, charts(figures))),
        sinks(s.sinks), routes(app, listed), panel("Source", badge(s.source.connected ? "good" : "bad", s.source.connected ? "connected" : "not connected"),
          el("div", { class: "body" }, el("p", {}, s.source_detail || "–"), el("div", { class: "muted mono" }, `position ${s.source.position || "–"} · checkpoint ${s.checkpoint.position || "–"}`),
            el("div", { class: "muted" }, `claims ${s.claims.mode || "–"} (${s.claims.reason || "–"}) · ${s.holder} · version ${s.version || "unknown"}`))));
    },
  };
}
