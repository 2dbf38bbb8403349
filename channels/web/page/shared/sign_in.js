// Sign-in, for every page. The code of a link works once.

import { ApiError, call, get } from "./api.js";
import { $, button, element, icon } from "./dom.js";
import { texts, translate } from "./texts.js";

export const RETRY_AFTER_MS = 1000;

/** @typedef {{name: string}} Person */

/**
 * Signs in with the code in the address, if there is one. Calls `show` with the person once that is known, and shows the
 * sign-in screen to everybody else. Waits for a gateway that cannot be reached.
 * @param {(person: Person) => void} show
 * @param {string | null} [code]
 */
export async function signIn(show, code = takeCode()) {
  const problem = code ? await exchangeCode(code) : "";
  const person = problem === undefined ? undefined : await whoami();
  if (person) return show(person);
  if (person === null) return showSignIn(problem);
  showUnreachable();
  // Without the code if it was exchanged: it does not work a second time.
  setTimeout(() => signIn(show, problem === undefined ? code : null), RETRY_AFTER_MS);
}

/** Says that the page waits for the gateway. */
function showUnreachable() {
  if (document.querySelector("#login.waiting")) return;
  const text = element("p", "", texts.signIn.waiting);
  text.setAttribute("role", "status");
  showCard(text);
  $("login").classList.add("waiting");
}

/** @param {HTMLElement[]} content */
function showCard(...content) {
  document.getElementById("login")?.remove();
  const screen = element("main", "login");
  screen.id = "login";
  const card = element("div", "card");
  const mark = icon("gate");
  mark.classList.add("mark");
  card.append(mark, ...content);
  screen.append(card);
  translate(screen);
  $("app").hidden = true;
  document.body.append(screen);
}

/** Returns the code of the link, and removes it from the address bar. */
function takeCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

/**
 * Returns why the code did not sign in, "" if it did, or undefined if the server is unreachable.
 * @param {string} code
 */
async function exchangeCode(code) {
  try {
    await call("POST", "/auth/exchange", { code });
    return "";
  } catch (problem) {
    if (!(problem instanceof ApiError) || problem.status === 0) return undefined;
    return problem.status === 401 ? texts.signIn.linkIsUsed : problem.message;
  }
}

/**
 * Returns the person, null if not signed in, or undefined if the server is unreachable.
 * @returns {Promise<Person | null | undefined>}
 */
export async function whoami() {
  try {
    return await get("/auth/whoami");
  } catch (problem) {
    return problem instanceof ApiError && [401, 403].includes(problem.status) ? null : undefined;
  }
}

/** Ends the sign-in of this browser. Raises `ApiError` if the gateway cannot be reached. */
export const signOut = () => call("POST", "/auth/logout", {}, { unreachable: texts.signIn.stillSignedIn });

/**
 * Shows the sign-in screen in the place of the page, which is the element `#app`.
 * @param {string} [problem]
 */
export function showSignIn(problem = "") {
  const line = element("p", "problem", problem);
  line.setAttribute("role", "alert");
  const retry = button("plain", texts.signIn.tryAgain);
  retry.addEventListener("click", () => location.reload());
  const words = [named("p", "signIn.how"), named("p", "signIn.once")];
  showCard(named("h1", "signIn.title"), ...(problem ? [line] : []), ...words, retry);
}

/**
 * @param {"h1" | "p"} tag
 * @param {string} text
 */
function named(tag, text) {
  const node = element(tag);
  node.dataset.text = text;
  return node;
}
