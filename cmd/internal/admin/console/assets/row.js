import { get } from "./api.js";
import { ago, badge, duration, el, empty, groupName, isTime, number, panel, replace, rowHash, table } from "./dom.js";

const kinds = { delivered: "good", failed: "bad", blocked: "bad", refused: "bad", unknown: "plain", in_flight: "plain", ready: "plain", claiming: "plain", queued: "plain", settling: "plain" };

const fact = (name, ...value) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value));
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(":") ? "" : ".");
const until = (at) => Date.parse(at) > Date.now() ? `in ${duration((Date.parse(at) - Date.now()) / 1000)}` : ago(at);

// leg shows the life of the row on one route.
const leg = (l, many) => panel(l.route || (many ? l.outbox : "Why"), badge(kinds[l.cause] ?? "warn", l.cause.replaceAll("_", " ")),
  el("div", { class: "body" }, el("p", {}, sentence(l.text)), l.remedy && el("p", {}, sentence(l.remedy)), l.commands && el("pre", { class: "payload commands" }, l.commands.map((c) => el("div", {}, c))),
    el("table", { class: "facts" }, el("tbody", {},
      l.error && fact("Failure", l.error), l.reason && fact("Reason", l.reason),
      l.sink && fact("Sink", l.sink), l.kind && fact("Group", el("span", { class: "mono" }, groupName(l.group)), ` · ${l.kind}`),
      isTime(l.committed_at) && fact("Committed", ago(l.committed_at)), isTime(l.captured_at) && fact("Captured", ago(l.captured_at)),
      isTime(l.since) && fact("Since", ago(l.since)), isTime(l.until) && fact("Until", until(l.until)),
      l.requests > 0 && fact("Attempts", number(l.requests), l.requests > l.attempts.length && `, the latest ${l.attempts.length} below`),
      l.settled && fact("Settled", l.settled.status, isTime(l.settled.at) && [" · ", ago(l.settled.at)])))),
  l.attempts.length > 0 && table([["Attempt"], ["Took", "num"], ["Class"], ["Answer", "error"]],
    l.attempts.map((a) => [ago(a.started_at), duration(a.seconds), badge(a.class === "delivered" ? "good" : "warn", a.class), a.error || "–"])));

// rowPage explains one row. It asks again with each poll, because the cause changes.
export function rowPage(app, body) {
  const names = el("datalist", { id: "outboxes" }), result = el("div", { id: "row" });
  const outbox = el("input", { type: "search", name: "outbox", list: "outboxes", required: true });
  const id = el("input", { type: "search", name: "id", placeholder: "exact id", required: true });
  let known = false, asked = null;
  const linked = new URLSearchParams(location.hash.split("?")[1]);
  if (linked.get("id")) [asked, outbox.value, id.value] = [Object.fromEntries(linked), linked.get("outbox"), linked.get("id")];
  const form = el("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); asked = { outbox: outbox.value.trim(), id: id.value.trim() }; history.replaceState(null, "", rowHash(asked.outbox, asked.id)); app.refresh(); } },
    el("label", {}, "Row", id), el("label", {}, "Outbox", outbox, names), el("button", { type: "submit", class: "primary", "data-key": "explain" }, "Explain"));
  body.append(el("section", { class: "panel" }, form), result);

  async function offer() {
    if (known) return;
    const all = (await get("config")).outboxes;
    known = true;
    replace(names, all.map((name) => el("option", { value: name })));
    outbox.value ||= all[0];
  }

  async function explain() {
    try {
      const row = await get(`rows/${encodeURIComponent(asked.outbox)}/${encodeURIComponent(asked.id)}`);
      replace(result, el("section", { class: "panel" }, el("header", {}, el("h2", { class: "mono" }, row.id), el("span", { class: "space" }), badge("plain", `table: ${row.table}`), badge("plain", row.relay))),
        row.legs.map((l) => leg(l, row.legs.length > 1)));
    } catch (error) {
      if (error.status !== 400) throw error;
      replace(result, empty(error.message)); // no such outbox
    }
  }

  return {
    update: async () => {
      await offer();
      if (asked) return explain();
      replace(result, empty("Enter the id of a row to see why it waits, its attempts and its outcome."));
    },
  };
}
