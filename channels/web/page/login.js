// Sign-in. The code of a link works once.

import { $ } from "./dom.js";

const LINK_IS_USED = "This link has already been used, or it has expired. Please get a new one.";

// Returns the code of the link, and removes it from the address bar.
export function takeCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

// Returns why the code did not sign in, "" if it did, or undefined if the server is unreachable.
export async function exchangeCode(code) {
  try {
    const answer = await fetch("/auth/exchange", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
    if (answer.ok) return "";
    return answer.status === 401 ? LINK_IS_USED : (await answer.json()).error;
  } catch {
    return undefined;
  }
}

// Returns the user's record, null if not signed in, or undefined if the server is unreachable.
export async function whoami() {
  try {
    const answer = await fetch("/auth/whoami", { cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) return null;
    return answer.ok ? await answer.json() : undefined;
  } catch {
    return undefined;
  }
}

export function showLogin(problem = "") {
  $("login-problem").textContent = problem;
  $("login-problem").hidden = !problem;
  $("app").hidden = true;
  $("login").hidden = false;
}
