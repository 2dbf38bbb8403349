// Who may use the console: a browser that is signed in as the owner, or one with a token that has `admin`.

import { ApiError, credentials, get } from "../shared/api.js";
import { $, element } from "../shared/dom.js";
import { showSignIn, signIn } from "../shared/sign_in.js";
import { load, save } from "../shared/storage.js";
import { texts } from "../shared/texts.js";
import { box, field } from "./elements.js";

const TOKEN_KEY = "gatehouse.console.token";

export const hasToken = () => credentials.token !== "";

/** A token is kept for this tab only. */
export function forgetToken() {
  credentials.token = "";
  save(TOKEN_KEY, null, sessionStorage);
}

/**
 * Calls `start` once the browser may use the console, and shows the sign-in screen until then.
 * @param {() => void} start
 */
export async function enter(start) {
  credentials.token = load(TOKEN_KEY, sessionStorage) ?? "";
  if (hasToken()) {
    const problem = await tryToken();
    if (problem === "") return start();
    return leave(start, problem);
  }
  await signIn(start);
  offerToken(start);
}

/**
 * Shows the sign-in screen again, with the reason.
 * @param {() => void} start
 * @param {string} problem
 */
export function leave(start, problem) {
  forgetToken();
  showSignIn(problem);
  offerToken(start);
}

/**
 * Adds a field for a token to the sign-in screen, if that is shown.
 * @param {() => void} start
 */
function offerToken(start) {
  const screen = document.querySelector("#login .card");
  if (!screen || screen.querySelector("form")) return;
  const secret = element("input");
  secret.type = "password";
  secret.autocomplete = "off";
  secret.required = true;
  const problem = element("p", "problem");
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  const submit = element("button", "primary", texts.console.useToken);
  const form = box("form", "token-form", problem, field(texts.console.tokenLabel, secret), submit);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    credentials.token = secret.value.trim();
    const reason = await tryToken();
    if (reason === "") {
      save(TOKEN_KEY, credentials.token, sessionStorage);
      return start();
    }
    forgetToken();
    problem.textContent = reason;
    problem.hidden = false;
  });
  screen.append(form);
  $("app").hidden = true;
}

/** Returns why the token cannot be used, or an empty string. */
async function tryToken() {
  try {
    await get("/api/overview?local=true");
    return "";
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    if (problem.status === 401) return texts.console.wrongToken;
    return problem.status === 403 ? texts.console.lacksAdmin : problem.message;
  }
}
