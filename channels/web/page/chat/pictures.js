// Thumbnails of pictures, and the picture in full size.

import { button, element } from "../shared/dom.js";
import { fill, texts } from "../shared/texts.js";

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;
const SIDE = 160;

/** @param {{name: string, kind?: string, media_type?: string}} file */
export function isPicture({ name, kind, media_type: type }) {
  return kind === "image" || Boolean(type?.startsWith("image/")) || (kind === undefined && PICTURE.test(name)) || (kind === "file" && PICTURE.test(name));
}

/**
 * Returns a thumbnail that opens the picture. Its place has a fixed size, so nothing moves when the picture arrives.
 * @param {{name: string, url: string}} file
 */
export function thumbnail({ name, url }) {
  const open = button("thumbnail", "");
  open.setAttribute("aria-label", fill(texts.chat.showPicture, { name }));
  const image = picture(name, url);
  // A picture that is no longer stored, or that the browser cannot show, is a link only.
  image.addEventListener("error", () => open.remove());
  open.append(image);
  open.addEventListener("click", () => show(name, url));
  return open;
}

/**
 * @param {string} name
 * @param {string} url
 */
function picture(name, url) {
  const image = element("img");
  const address = new URL(url, location.origin);
  image.alt = name;
  image.loading = "lazy";
  image.src = address.pathname + address.search;
  return image;
}

/**
 * @param {string} name
 * @param {string} url
 */
function show(name, url) {
  const dialog = element("dialog", "lightbox");
  dialog.setAttribute("aria-label", name);
  const close = button("icon", texts.chat.close, "close");
  close.addEventListener("click", () => dialog.close());
  dialog.append(picture(name, url), close);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Returns a small copy of a picture as a data URL, or "" if it is no picture.
 * @param {Blob} blob
 */
export async function miniature(blob) {
  if (!blob.type.startsWith("image/")) return "";
  try {
    const bitmap = await createImageBitmap(blob, { resizeHeight: SIDE, resizeQuality: "medium" });
    const canvas = element("canvas");
    [canvas.width, canvas.height] = [Math.min(bitmap.width, SIDE * 2), bitmap.height];
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
    bitmap.close();
    return canvas.toDataURL("image/jpeg", 0.8);
  } catch {
    return ""; // The browser does not know the format.
  }
}
