// Validates stored and imported values, which can have any type and content.

const MAX_TEXT_LENGTH = 100000;

/** Returns a text as one line, without control characters and characters that change the text direction. */
export const toPlainLine = (text) =>
  text.replace(/[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069\s]+/gu, " ").trim();

export const isText = (value) => typeof value === "string" && value.length <= MAX_TEXT_LENGTH;
export const isId = (value) => /^[0-9a-f]{16}$/.test(value);
// HTTP headers cannot contain other characters.
export const isKey = (value) => isText(value) && /^[!-~]+$/.test(value);
export const textOrNull = (value) => (isText(value) ? value : null);
export const oneOf = (value, allowed) => (allowed.includes(value) ? value : null);
