// What the browser keeps for the pages. A browser may refuse that, and then nothing is kept.

/**
 * @param {string} key
 * @param {Storage} [storage]
 */
export function load(key, storage = localStorage) {
  try {
    return storage.getItem(key);
  } catch {
    return null;
  }
}

/**
 * @param {string} key
 * @param {string | null} value Null removes what was kept.
 * @param {Storage} [storage]
 */
export function save(key, value, storage = localStorage) {
  try {
    if (value === null) storage.removeItem(key);
    else storage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}
