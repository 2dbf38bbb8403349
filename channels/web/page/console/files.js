// Downloads. A link carries no token, so files are fetched and then saved.

import { ApiError, authorization } from "../shared/api.js";
import { texts } from "../shared/texts.js";
import { saveAs } from "./elements.js";

/**
 * Fetches a file of the API. Raises `ApiError`.
 * @param {string} path
 */
export async function fetchFile(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: authorization(), cache: "no-store" });
  } catch {
    throw new ApiError(texts.common.unreachable, 0);
  }
  if (!answer.ok) throw new ApiError((await answer.json().catch(() => null))?.detail ?? answer.statusText, answer.status);
  return answer;
}

/**
 * @param {string} path
 * @param {string} name
 */
export async function download(path, name) {
  saveAs(await (await fetchFile(path)).blob(), name);
}

/**
 * Returns a picture as a `data:` URL, which the Content-Security-Policy allows.
 * @param {string} path
 * @param {string} mediaType
 * @returns {Promise<string>}
 */
export async function pictureUrl(path, mediaType) {
  const content = await (await fetchFile(path)).arrayBuffer();
  const reader = new FileReader();
  return new Promise((resolve, reject) => {
    reader.addEventListener("load", () => resolve(String(reader.result)));
    reader.addEventListener("error", reject);
    reader.readAsDataURL(new Blob([content], { type: mediaType }));
  });
}
