import { get, post } from "./api.js";
import { ago, ask, badge, button, duration, el, empty, groupName, isTime, number, panel, replace, rowLink, table, toast } from "./dom.js";

const states = ["", "waiting", "stalled", "blocked", "paused", "replaying", "spilled", "ready", "claiming", "sending", "writing"];
const kinds = { blocked: "bad", stalled: "bad", waiting: "warn", paused: "warn", replaying: "warn" };

const nameOf = (l) => `${l.outbox} / ${groupName(l.group)}${l.row_id ? ` / ${l.row_id}` : ""}`;
// target names a lane for an action.
const target = (l) => ({ outbox: l.outbox, kind: l.kind, ...(l.group === null || l.group === undefined ? {} : { group: l.group }), ...(l.row_id ? { row_id: l.row_id } : {}) });

async function act(app, lane, action, done, dialog) {
  try {
    if (dialog) {
      const ok = await ask({ ...dialog, action: dialog.title.split(" ")[0], fields: [{ name: "reason", label: "Reason, for other operators", required: true, maxlength: 500 }], act: ({ reason }) => post(`lanes/${action}`, { ...target(lane), reason }) });
      if (!ok) return;
    } else await post(`lanes/${action}`, target(lane));
    toast(`${nameOf(lane)}: ${done}`);
  } catch (error) { toast(error.message, true); }
  app.refresh();
}

function buttons(app, l) {
  if (!app.may() || l.replay) return null;
  const key = nameOf(l) + l.kind, can = (...of) => of.includes(l.state);
  return el("div", { class: "row" },
    can("waiting", "stalled") && button("Retry now", `retry ${key}`, () => act(app, l, "retry-now", "is retried")),
    l.head && can("waiting", "stalled", "blocked", "paused") && button("Skip head", `skip ${key}`, () => act(app, l, "skip", "its head was skipped", { title: "Skip the head row", danger: true, text: `Row ${l.head} stays or becomes FAILED. The rows after it are delivered.` }), "danger"),
    can("paused") ? button("Resume", `resume ${key}`, () => act(app, l, "resume", "is resumed"))
      : button("Pause", `pause ${key}`, () => act(app, l, "pause", "is paused", { title: "Pause the lane", text: "Its rows wait until it is resumed, also across restarts." })));
}

const line = (app, l) => [
  el("div", {}, el("strong", { class: "mono" }, groupName(l.group)), el("div", { class: "sub" }, `${l.outbox} · ${l.kind}${l.replay ? ` · replay ${l.replay}` : ""}`)),
  badge(kinds[l.state] ?? "plain", l.state), number(l.rows + l.spilled + l.unwritten),
  el("div", {}, l.head ? rowLink(l.outbox, l.head) : "–", (l.error || l.reason) && el("div", { class: "sub" }, l.reason || l.error)),
  number(l.attempts), isTime(l.next_attempt) ? `in ${duration(Math.max(0, (Date.parse(l.next_attempt) - Date.now()) / 1000))}` : "–", isTime(l.since) ? ago(l.since) : "–",
  buttons(app, l),
];

export function lanes(app, body) {
  const state = el("select", { onchange: () => app.refresh() }, states.map((s) => el("option", { value: s }, s || "all, troubled first")));
  const group = el("input", { type: "search", placeholder: "exact name", oninput: () => app.refresh() });
  const filters = el("div", { class: "filters" }, el("label", {}, "State", state), el("label", {}, "Group", group));
  const list = el("div", {});
  body.append(el("section", { class: "panel" }, filters, list));
  return {
    update: async () => {
      if (!app.status.is_leader) return replace(list, empty("This relay stands by. Only the leader has lanes."));
      const q = new URLSearchParams({ limit: "100", ...(state.value && { state: state.value }), ...(group.value && { group: group.value }) });
      const got = await get(`lanes?${q}`);
      replace(list, got.lanes.length ? table([["Group"], ["State"], ["Rows", "num"], ["Head", "error"], ["Tries", "num"], ["Next try"], ["Since"], ["", "acts"]], got.lanes.map((l) => line(app, l)))
        : empty("No lane has rows: everything is delivered."), got.total > got.lanes.length && empty(`${number(got.total - got.lanes.length)} more; narrow the filter`));
    },
  };
}
