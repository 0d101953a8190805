import { get, post } from "./api.js";
import { ago, ask, badge, button, el, empty, number, panel, replace, table, toast } from "./dom.js";

const ended = ["done", "failed", "refused", "cancelled"];
const kinds = { done: "good", failed: "bad", refused: "bad", cancelled: "plain", paused: "warn" };
const list = (text) => text.split(",").map((t) => t.trim()).filter(Boolean);

// specOf makes a replay's spec of the fields of the form.
function specOf(f, checkpoints) {
  const spec = { dry_run: f.dry_run };
  if (checkpoints.includes(f.from)) spec.from = f.from;
  else if (!f.since) throw new Error("say from when: choose a checkpoint, or enter a time");
  else spec.since = new Date(f.since).toISOString();
  for (const name of ["outboxes", "groups", "kinds"]) if (list(f[name]).length) spec[name] = list(f[name]);
  if (f.rate) spec.rate = Number(f.rate);
  return spec;
}

const localTime = (at) => new Date(at - new Date(at).getTimezoneOffset() * 60000).toISOString().slice(0, 16);

async function start(app) {
  const { checkpoints } = await get("checkpoints").catch(() => ({ checkpoints: [] }));
  const names = checkpoints.filter((c) => !c.deleting && ["made", "kept", "dropped"].includes(c.state)).map((c) => c.name);
  const done = await ask({
    title: "Start a replay", text: "It sends delivered rows again. A dry run counts them first and sends nothing.", action: "Start",
    fields: [
      { name: "from", label: "From a named checkpoint", type: "select", options: [["", "no: from a time"], ...names.map((n) => [n, n])] },
      { name: "since", label: "From a time (of this browser)", type: "datetime-local", value: localTime(Date.now() - 3600e3) },
      { name: "outboxes", label: "Outboxes, separated by commas", placeholder: "all" }, { name: "groups", label: "Groups", placeholder: "all" }, { name: "kinds", label: "Kinds", placeholder: "all" },
      { name: "rate", label: "Rows per second at most", type: "number", min: 1, placeholder: "no limit" }, { name: "dry_run", label: "Dry run: count, send nothing", type: "checkbox" },
    ],
    act: (f) => post("replays", specOf(f, names)),
  });
  if (done) { toast(`Replay ${done.id} is requested`); app.refresh(); }
}

async function steer(app, job, action) {
  if (action === "cancel" && !await ask({ title: `Cancel replay ${job.id}`, text: "Rows that were sent stay sent.", action: "Cancel the replay", danger: true, act: () => true })) return;
  try {
    await post(`replays/${action}`, { job: job.id });
    toast(`Replay ${job.id}: ${action} is requested`);
  } catch (error) { toast(error.message, true); }
  app.refresh();
}

async function startAfterDryRun(app, job) {
  const { dry_run: _, ...spec } = job.spec;
  const done = await ask({ title: `Send ${number(job.remaining)} rows again`, text: "The same rows as the dry run counted, as of now.", action: "Start", act: () => post("replays", spec) });
  if (done) { toast(`Replay ${done.id} is requested`); app.refresh(); }
}

const scope = (s) => [s.from ? `from ${s.from}` : `since ${s.since}`, s.outboxes?.join(", "), s.groups && `groups ${s.groups.join(", ")}`, s.kinds && `kinds ${s.kinds.join(", ")}`, s.ids && `${s.ids.length} ids`, s.sink && `to ${s.sink}`, s.rate && `${s.rate} rows/s`].filter(Boolean).join(" · ");

const line = (app, j) => [
  el("div", {}, el("strong", { class: "mono" }, j.id), j.spec.dry_run && " dry run", el("div", { class: "sub" }, scope(j.spec))),
  el("div", {}, badge(kinds[j.state] ?? "plain", j.state), j.reason && el("div", { class: "sub" }, j.reason)),
  j.spec.dry_run ? el("div", {}, `${number(j.remaining)} rows would be sent`)
    : el("div", {}, el("progress", { class: "bar", max: Math.max(1, j.rows), value: j.rows - j.remaining, "aria-label": `Progress of ${j.id}` }),
      el("div", { class: "sub" }, `${number(j.sent)} sent, ${number(j.skipped)} skipped, ${number(j.refused)} refused of ${number(j.rows)}`)),
  ago(j.requested_at),
  app.may() && el("div", { class: "row" },
    !ended.includes(j.state) && [j.desired_state === "pause" ? button("Resume", `resume ${j.id}`, () => steer(app, j, "resume")) : button("Pause", `pause ${j.id}`, () => steer(app, j, "pause")), button("Cancel", `cancel ${j.id}`, () => steer(app, j, "cancel"), "danger")],
    j.spec.dry_run && j.state === "done" && j.remaining > 0 && button("Send them", `send ${j.id}`, () => startAfterDryRun(app, j), "primary")),
];

export function replays(app, body) {
  return {
    update: async () => {
      if (!app.status.is_leader) return replace(body, panel("Replays", null, empty("This relay stands by. Open the leader's page, or use sluicebox replay, which goes through the database.")));
      const got = await get("replays");
      replace(body, panel("Replays", app.may() && button("Start a replay", "start", () => start(app), "primary"),
        got.replays.length ? table([["Replay"], ["State"], ["Progress", "error"], ["Requested"], ["", "acts"]], got.replays.map((j) => line(app, j))) : empty("No replay was requested yet.")));
    },
  };
}
