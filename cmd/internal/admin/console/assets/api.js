// Calls the relay's API with the cookie of the login.

// base is the path of the source, "" in a process with one source.
export const base = location.pathname.match(/^\/sources\/[^/]+/)?.[0] ?? "";

const known = new Map(); // answers by path, with their ETag

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Refused(response.status, `the relay answered ${response.status} without a reason`);
  }
  if (!response.ok) throw new Refused(response.status, body.error ?? `the relay answered ${response.status}`);
  return body;
}

// get reads a path. An answer that has not changed is not sent again.
export async function get(path) {
  const before = known.get(path);
  const response = await fetch(`${base}/api/v1/${path}`, { cache: "no-store", headers: before ? { "If-None-Match": before.tag } : {} });
  if (response.status === 304) return before.body;
  const body = await answer(response);
  const tag = response.headers.get("ETag");
  if (known.size > 50) known.clear();
  if (tag) known.set(path, { tag, body });
  return body;
}

export const post = async (path, body = {}) => answer(await fetch(`${base}/api/v1/${path}`, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
}));

export const forget = () => known.clear();
