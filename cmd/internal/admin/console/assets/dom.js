// Builds the page's elements. Texts become text nodes, so nothing of a row is ever markup.

const svgNames = new Set(["svg", "path"]);

// el makes an element. Properties that begin with "on" are listeners; null and false are left out.
export function el(name, props = {}, ...children) {
  const node = svgNames.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

// replace renders children into a node and keeps the focus on the element with the same data-key.
export function replace(node, ...children) {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// rowHash is the address of the page that explains a row of an outbox or of a route.
export const rowHash = (outbox, id) => `#/row?${new URLSearchParams({ outbox: outbox.split("/")[0], id })}`;
export const rowLink = (outbox, id) => el("a", { class: "mono", href: rowHash(outbox, id), "data-key": `why ${outbox} ${id}`, title: "Why this row waits" }, id);
export const badge = (kind, text) => el("span", { class: `badge ${kind}` }, text);
export const button = (text, key, onclick, kind = "") => el("button", { type: "button", class: kind, "data-key": key, onclick }, text);
export const panel = (title, extra, ...body) => el("section", { class: "panel" }, el("header", {}, el("h2", {}, title), el("span", { class: "space" }), extra), ...body);
export const empty = (text) => el("div", { class: "empty" }, text);
export const tile = (label, value, ...note) => el("div", { class: "tile" }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), el("div", { class: "note" }, ...note));

// table makes a table of columns [title, class] and rows of cells. On a phone, titles precede the cells.
export function table(columns, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", { class: kind ?? "", scope: "col" }, title)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, i) =>
      el("td", { class: columns[i][1] ?? "", "data-label": columns[i][0] || null }, cell)))))));
}

export const number = (n) => (n ?? null) === null ? "–" : Math.abs(n) < 10 && n % 1 ? n.toFixed(1) : Math.round(n).toLocaleString("en");

export function bytes(n) {
  if ((n ?? null) === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

// two shows a duration in two units, the second only if it is not 0.
const two = (a, unit, b, smaller) => `${Math.floor(a)} ${unit}${Math.floor(b) ? ` ${Math.floor(b)} ${smaller}` : ""}`;

// duration shows seconds.
export function duration(s) {
  if ((s ?? null) === null) return "–";
  if (s === 0) return "0 s";
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 3600) return two(s / 60, "min", s % 60, "s");
  if (s < 86400) return two(s / 3600, "h", s % 3600 / 60, "min");
  return two(s / 86400, "d", s % 86400 / 3600, "h");
}

export const isTime = (at) => Boolean(at) && !at.startsWith("0001");
export const ago = (at) => isTime(at) ? el("time", { datetime: at, title: at }, `${duration(Math.max(0, (Date.now() - Date.parse(at)) / 1000))} ago`) : "–";
export const groupName = (group) => group === null || group === undefined ? "no group" : typeof group === "string" ? group : JSON.stringify(group);

// sparkline draws series of numbers, null where there is none, from 0 to the largest. An area
// begins at its first number.
export function sparkline(label, series, most) {
  const width = 360, height = 60, top = Math.max(most ?? 0, ...series.flatMap((s) => s.values.map((v) => v ?? 0))) || 1;
  const paths = series.flatMap(({ values, kind }) => {
    let d = "", pen = false;
    const x = (i) => (i / Math.max(1, values.length - 1) * width).toFixed(1);
    values.forEach((v, i) => {
      if (v === null) { pen = false; return; }
      d += `${pen ? "L" : "M"}${x(i)} ${(height - 2 - v / top * (height - 6)).toFixed(1)}`;
      if (!pen && (values[i + 1] ?? null) === null) d += i > 0 ? "h-5" : "h5";
      pen = true;
    });
    const first = values.findIndex((v) => v !== null), area = kind === "area" && first >= 0 && first < values.length - 1 && !values.slice(first).includes(null);
    return [area && el("path", { class: "area", d: `${d}L${width} ${height}L${x(first)} ${height}Z` }), el("path", { class: kind ?? "", d, ...(kind === "area" ? { class: "" } : {}) })];
  });
  return el("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, paths);
}

export function toast(text, bad = false) {
  const node = el("div", { class: bad ? "bad" : "" }, text);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), bad ? 9000 : 4000);
}

// refocus gives the focus back to an element, or to the one that replaced it since.
const refocus = (node) => (node?.isConnected ? node : node?.dataset.key && document.querySelector(`[data-key="${CSS.escape(node.dataset.key)}"]`))?.focus?.();

// ask opens a dialog. fields are {name, label, type, value, required, options}; act gets their values
// and may throw, which keeps the dialog open. It resolves to the result of act, or undefined.
export function ask({ title, text, fields = [], action, danger, act }) {
  if (document.querySelector("dialog[open]")) return Promise.resolve(); // pressed twice
  return new Promise((done) => {
    const opener = document.activeElement;
    const problem = el("p", { class: "problem", role: "alert", hidden: true });
    const inputs = fields.map((f) => {
      if (f.type === "select") return [f, el("select", { name: f.name }, f.options.map(([value, label]) => el("option", { value }, label)))];
      return [f, el("input", { name: f.name, type: f.type ?? "text", value: f.value ?? "", required: f.required, maxlength: f.maxlength, min: f.min, placeholder: f.placeholder, autocomplete: "off" })];
    });
    const submit = el("button", { type: "submit", class: `primary ${danger ? "danger" : ""}` }, action);
    let result;
    const form = el("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          const values = Object.fromEntries(inputs.map(([f, input]) => [f.name, f.type === "checkbox" ? input.checked : input.value.trim()]));
          result = await act(values) ?? true;
          dialog.close();
        } catch (error) {
          problem.textContent = error.message;
          problem.hidden = false;
        }
        submit.disabled = false;
      },
    }, el("h2", {}, title), text && el("p", { class: "muted" }, text),
    el("div", { class: "fields" }, inputs.map(([f, input]) => f.type === "checkbox" ? el("label", { class: "check" }, input, f.label) : el("label", {}, f.label, input))),
    problem, el("div", { class: "row" }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit));
    const dialog = el("dialog", { onclose: () => { dialog.remove(); refocus(opener); done(result); } }, form);
    document.body.append(dialog);
    dialog.showModal();
    (inputs[0]?.[1] ?? submit).focus();
  });
}
