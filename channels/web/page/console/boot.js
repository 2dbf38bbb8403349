// Starts the console once the browser has painted the frame of the page. The modules would delay that.

const PATIENCE_MS = 100;

let isStarted = false;

function start() {
  if (isStarted) return;
  isStarted = true;
  import("./app.js");
}

requestAnimationFrame(() => setTimeout(start));
// A page in the background is not painted.
setTimeout(start, PATIENCE_MS);
