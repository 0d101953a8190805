import { get, post } from "./api.js";
import { ago, ask, button, bytes, el, empty, groupName, isTime, number, replace, rowLink, table, toast } from "./dom.js";

const perRequest = 1000;

export function deadLetters(app, body) {
  const chosen = new Set(), payloads = new Map();
  let rows = [], count = 0, known = "";
  const changed = () => { chosen.clear(); app.refresh(); };
  const outbox = el("select", { onchange: () => { payloads.clear(); changed(); } });
  const inputs = { group: "Group", kind: "Kind", error: "Error contains" };
  for (const name of Object.keys(inputs)) inputs[name] = [inputs[name], el("input", { type: "search", name, oninput: changed })];
  const bar = el("div", { class: "filters" }), list = el("div", {});
  body.append(el("section", { class: "panel" },
    el("div", { class: "filters" }, el("label", {}, "Outbox", outbox), Object.values(inputs).map(([label, input]) => el("label", {}, label, input))), bar, list));

  // filter is what a request chooses; its names are those of the API's bodies and parameters.
  const filter = () => ({ outbox: outbox.value, ...Object.fromEntries(Object.entries(inputs).filter(([, [, i]]) => i.value).map(([name, [, i]]) => [name, i.value])) });

  async function act(action, ids) {
    const verb = action === "requeue" ? "Requeue" : "Discard";
    const request = ids ? { outbox: outbox.value, ids } : filter();
    try {
      const preview = await post(`deadletters/${action}`, { ...request, dry_run: true });
      const most = Math.min(preview.count, perRequest);
      const done = await ask({
        title: `${verb} ${number(most)} ${most === 1 ? "row" : "rows"}`, danger: action === "discard", action: `${verb} ${number(most)}`,
        text: (action === "requeue" ? "They become PENDING and are delivered again." : "They are deleted from the outbox table. This cannot be undone.")
          + (preview.count > most ? ` ${number(preview.count)} match; one step takes ${perRequest}.` : ""),
        act: () => post(`deadletters/${action}`, { ...request, ...(preview.until && !preview.until.startsWith("0001") ? { until: preview.until } : {}), expect: preview.count }),
      });
      if (done) { toast(`${number(done.count)} ${done.count === 1 ? "row was" : "rows were"} ${action}ed`.replace("requeueed", "requeued")); chosen.clear(); }
    } catch (error) { toast(error.message, true); }
    app.refresh();
  }

  async function reveal(row) {
    if (payloads.has(row.id)) payloads.delete(row.id);
    else {
      try {
        const got = await get(`deadletters?${new URLSearchParams({ outbox: outbox.value, id: row.id, payload: "true" })}`);
        const of = got.deadletters[0];
        payloads.set(row.id, of?.payload ?? (of?.payload_base64 ? `base64: ${of.payload_base64}` : "The payload is too large to show here."));
      } catch (error) { toast(error.message, true); }
    }
    show();
  }

  const line = (r) => [
    app.may() && el("input", { type: "checkbox", "data-key": `choose ${r.id}`, "aria-label": `Choose ${r.id}`, checked: chosen.has(r.id), onchange: (e) => { if (e.target.checked) chosen.add(r.id); else chosen.delete(r.id); show(); } }),
    el("div", {}, rowLink(r.outbox, r.id), el("div", { class: "sub" }, `${r.kind} · ${groupName(r.group)}`)),
    el("div", {}, r.error || "–", payloads.has(r.id) && el("pre", { class: "payload" }, payloads.get(r.id))),
    number(r.retry_count), isTime(r.failed_at) ? ago(r.failed_at) : "–",
    el("div", { class: "row" },
      app.session.role === "operator" && button(payloads.has(r.id) ? "Hide" : `Payload, ${bytes(r.payload_size)}`, `payload ${r.id}`, () => reveal(r)),
      app.may() && button("Requeue", `requeue ${r.id}`, () => act("requeue", [r.id])), app.may() && button("Discard", `discard ${r.id}`, () => act("discard", [r.id]), "danger")),
  ];

  function show() {
    const some = chosen.size > 0;
    replace(bar, el("strong", { id: "matching" }, `${number(count)} FAILED ${count === 1 ? "row" : "rows"}`), el("span", { class: "muted" }, rows.length < count ? `the first ${rows.length} are shown` : ""),
      app.may() && count > 0 && [some && button(`Requeue ${chosen.size} chosen`, "requeue some", () => act("requeue", [...chosen]), "primary"),
        some && button(`Discard ${chosen.size} chosen`, "discard some", () => act("discard", [...chosen]), "danger"),
        !some && button("Requeue all that match", "requeue all", () => act("requeue")), !some && button("Discard all that match", "discard all", () => act("discard"), "danger")]);
    replace(list, rows.length ? table([[""], ["Row"], ["Error", "error"], ["Retries", "num"], ["Failed"], ["", "acts"]], rows.map(line)) : empty("No FAILED row matches."));
  }

  return {
    update: async () => {
      if (!app.status.is_leader) return replace(list, empty("This relay stands by. Open the leader's page, or use sluicebox deadletters, which goes through the database."));
      const names = [...new Set((await get("routes")).routes.map((r) => r.route ? `${r.outbox}/${r.route}` : r.outbox))];
      if (known !== names.join()) {
        known = names.join();
        replace(outbox, names.map((name) => el("option", { value: name }, name)));
      }
      const asked = JSON.stringify(filter()), q = new URLSearchParams(filter());
      const [got, total] = await Promise.all([get(`deadletters?${q}&limit=50`), get(`deadletters/count?${q}`)]);
      if (asked !== JSON.stringify(filter())) return app.refresh();
      [rows, count] = [got.deadletters, total.count];
      show();
    },
  };
}
