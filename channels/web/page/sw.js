// The service worker: keeps the files of the page, so that it opens without a connection. It stores no messages.

const CACHE = "gatehouse-page";
const SHELL = /^\/($|chat\/|shared\/|texts\/|favicon\.svg$|app\.webmanifest$|icon-)/;

const worker = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));

worker.addEventListener("install", (event) => event.waitUntil(fill().then(() => worker.skipWaiting())));
worker.addEventListener("activate", (event) => event.waitUntil(worker.clients.claim()));

// The page names its style sheets and modules in its head.
async function fill() {
  const cache = await caches.open(CACHE);
  const page = await fetch("/");
  const named = [...(await page.clone().text()).matchAll(/(?:href|src)="(\/[^"#]+)/g)].map(([, path]) => path);
  const languages = ["/texts/en.js", "/texts/de.js"];
  await cache.put("/", page);
  await cache.addAll([...new Set([...named, ...languages])].filter((path) => SHELL.test(path)));
}

worker.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  const { origin, pathname } = new URL(url);
  if (method !== "GET" || origin !== location.origin || !SHELL.test(pathname)) return;
  event.respondWith(answer(event.request, pathname));
});

/**
 * From the gateway, or from the cache if that cannot be reached.
 * @param {Request} request
 * @param {string} pathname
 */
async function answer(request, pathname) {
  const cache = await caches.open(CACHE);
  try {
    const fresh = await fetch(request);
    if (fresh.ok) await cache.put(pathname, fresh.clone());
    return fresh;
  } catch (problem) {
    const kept = await cache.match(pathname);
    if (kept) return kept;
    throw problem;
  }
}

worker.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(show());
});

async function show() {
  const [page] = await worker.clients.matchAll({ type: "window" });
  if (page) await page.focus();
  else await worker.clients.openWindow("/");
}
