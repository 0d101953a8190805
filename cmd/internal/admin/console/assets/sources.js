// The sources of a process that has several, each with a link to its page.

import { get } from "./api.js";
import { badge, el, replace } from "./dom.js";
import { loginForm } from "./login.js";

const pollInterval = 2000; // milliseconds
const top = document.getElementById("top"), main = document.getElementById("main");

function head(list) {
  const leads = list?.sources.filter((s) => s.is_leader).length;
  replace(top, el("div", { class: "brand" }, el("img", { src: "/console/icon.svg", alt: "" }), list?.process ?? "Sluicebox"),
    list && badge("plain", `leads ${leads} of ${list.sources.length}`));
}

const state = (s) => !s.ready ? badge("bad", "not ready") : s.is_leader ? badge("good", "leader") : badge("warn", "standby");

const row = (s) => el("tr", {},
  el("td", {}, s.role ? s.name : el("a", { href: `/sources/${encodeURIComponent(s.name)}/` }, s.name)), el("td", {}, state(s)),
  el("td", {}, s.is_leader ? s.mode : ""), el("td", {}, s.is_leader ? s.lag.rows : ""),
  el("td", {}, s.lag.seconds == null ? "" : `${s.lag.seconds.toFixed(1)} s`), el("td", {}, s.is_leader ? s.captured_per_second["1m"].toFixed(1) : ""),
  el("td", {}, s.ready && s.is_leader ? "" : s.detail));

async function poll() {
  try {
    if (!document.hidden) {
      const list = await get("sources");
      head(list);
      const bad = (s) => s.ready ? 1 : 0;
      main.replaceChildren(el("h1", {}, "Sources"), el("table", {},
        el("thead", {}, el("tr", {}, ["Source", "State", "Mode", "Rows waiting", "Oldest", "Rows/s", "Detail"].map((t) => el("th", {}, t)))),
        el("tbody", {}, list.sources.toSorted((a, b) => bad(a) - bad(b)).map(row))));
    }
  } catch (error) {
    if (error.status === 401) { loginForm(main, poll); return; }
    main.querySelector(".notice.lost")?.remove();
    main.prepend(el("div", { class: "notice bad lost", role: "alert" }, `No fresh figures: ${error.message}`));
  }
  setTimeout(poll, pollInterval);
}

head();
poll();
