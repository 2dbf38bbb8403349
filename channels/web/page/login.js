// Sign-in. The code of a link works once. It is removed from the address bar first of all.

import { $ } from "./dom.js";

export async function exchangeCode(code) {
  try {
    await fetch("/auth/exchange", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
  } catch {
    // The server is unreachable. `whoami` fails too, and is retried.
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

export function showLogin() {
  $("app").hidden = true;
  $("login").hidden = false;
}
