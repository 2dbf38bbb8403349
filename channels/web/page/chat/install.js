// Installation as an app: the service worker, and the browser's offer to install.

/** @typedef {Event & {prompt: () => Promise<unknown>}} InstallPrompt */

/** @type {InstallPrompt | null} */
let offer = null;

export function registerApp() {
  addEventListener("beforeinstallprompt", (event) => {
    event.preventDefault();
    offer = /** @type {InstallPrompt} */ (event);
  });
  addEventListener("appinstalled", () => (offer = null));
  // Browsers have it on pages served over TLS or from this machine only. The page works without it.
  navigator.serviceWorker?.register("/sw.js").catch(() => {});
}

export const canInstall = () => offer !== null;

export async function install() {
  await offer?.prompt();
  offer = null;
}
