// The form to sign in, for every page of the console.

import { post } from "./api.js";
import { el } from "./dom.js";

// loginForm shows the form in main. done gets the session; help may be null.
export function loginForm(main, done, help) {
  const problem = el("p", { class: "problem", role: "alert" });
  const token = el("input", { type: "password", name: "token", required: true, autocomplete: "current-password", id: "token" });
  const form = el("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        done(await post("session", { token: token.value.trim() }));
      } catch (error) {
        problem.textContent = error.message;
        token.select();
      }
    },
  }, el("label", {}, "Token", token), problem, el("button", { type: "submit", class: "primary" }, "Sign in"));
  main.replaceChildren(el("section", { class: "panel login" }, el("header", {}, el("h2", {}, "Sign in")), el("div", { class: "body" }, help, form)));
  token.focus();
}
