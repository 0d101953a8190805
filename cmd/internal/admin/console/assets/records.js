import { get } from "./api.js";
import { ago, badge, el, empty, panel, replace, table } from "./dom.js";

export function actions(app, body) {
  return {
    update: async () => {
      if (!app.status.is_leader) return replace(body, panel("Actions", null, empty("This relay stands by. The leader's page has the log.")));
      const got = await get("actions?limit=200");
      replace(body, panel("Actions of operators", el("span", { class: "muted" }, "the latest 1,000 are kept"), got.actions.length
        ? table([["When"], ["Who"], ["Action"], ["Target", "error"], ["Reason"], ["Result"]], got.actions.map((a) => [ago(a.at),
          el("div", {}, a.who, el("div", { class: "sub" }, a.from)), el("span", { class: "mono whole" }, a.what), el("span", { class: "mono" }, a.target || "–"), a.reason || "–",
          a.result === "ok" ? badge("good", "ok") : el("div", {}, badge("bad", "refused"), el("div", { class: "sub" }, a.result))]))
        : empty("Nobody has acted yet.")));
    },
  };
}

export function configuration(app, body) {
  return {
    update: async () => {
      const got = await get("config");
      if (body.dataset.text === got.yaml) return; // keeps a selection
      body.dataset.text = got.yaml;
      replace(body, panel("Configuration in force", el("span", { class: "muted" }, "with defaults; secrets are redacted"), el("pre", { tabindex: "0" }, got.yaml)));
    },
  };
}
