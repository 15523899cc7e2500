// What was stored by another version of the page, or comes from a file, has any form: only what is known is taken.

const LONGEST_TEXT = 100000;

/** Returns a text without control characters and without those that change the direction of what stands beside it. */
export const plainLine = (text) =>
  text.replace(/[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069\s]+/gu, " ").trim();

export const isText = (value) => typeof value === "string" && value.length <= LONGEST_TEXT;
export const isId = (value) => /^[0-9a-f]{16}$/.test(value);
// The header of a request cannot have other characters.
export const isKey = (value) => isText(value) && /^[!-~]+$/.test(value);
export const textOrNull = (value) => (isText(value) ? value : null);
export const oneOf = (value, allowed) => (allowed.includes(value) ? value : null);
