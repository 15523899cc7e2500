// What is wrong with the page as it is shown now, for test_accessibility.py.

// The texts and icons whose contrast is too low: [text, ratio]. A text is on the nearest backgrounds, blended.
function lowContrast() {
  const parts = (color) => {
    const numbers = color.match(/[\d.]+/g).map(Number);
    return [...numbers.slice(0, 3), numbers[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]).concat(1);
  const backgroundOf = (e) => {
    const below = e.parentElement ? backgroundOf(e.parentElement) : [255, 255, 255, 1];
    return over(parts(getComputedStyle(e).backgroundColor), below);
  };
  const luminance = (c) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const shown = e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width > 1;
    if (!shown || e.closest(":disabled, script, style, noscript") || !(own || e.matches("svg.icon"))) continue;
    const background = backgroundOf(e);
    const pair = [luminance(over(parts(getComputedStyle(e).color), background)), luminance(background)].sort();
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < (e.matches("svg.icon") ? 3 : 4.5)) found.push([e.textContent || e.outerHTML, ratio]);
  }
  return found;
}

// Controls without a name, ids that occur twice, and references to ids that there are not.
function unnamed() {
  const named = (e) => e.ariaLabel || e.innerText?.trim() || e.labels?.length || e.getAttribute("aria-labelledby");
  const shown = [...document.querySelectorAll("button, input, select, textarea, [role=region], dialog[open], nav")];
  const without = shown.filter((e) => !e.closest("[hidden], dialog:not([open])") && !named(e)).map((e) => e.outerHTML);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  const twice = ids.filter((id, i) => ids.indexOf(id) !== i);
  const names = ["for", "aria-describedby", "aria-labelledby", "aria-controls"];
  const references = [...document.querySelectorAll(names.map((name) => `[${name}]`).join())]
    .flatMap((e) => names.map((name) => e.getAttribute(name)))
    .filter(Boolean);
  return [...without, ...twice, ...references.filter((id) => !document.getElementById(id))];
}

// Controls that reach beyond the right edge of the page, or are lower than WCAG 2.2 allows.
function misplaced() {
  const shown = [...document.querySelectorAll("button, select, textarea, .bubble")].filter(
    (e) =>
      e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width && !e.closest(".sidebar"),
  );
  const isMisplaced = ({ right, height }) => right > innerWidth || height < 24;
  return shown.filter((e) => isMisplaced(e.getBoundingClientRect())).map((e) => e.outerHTML);
}

// Whether the header leaves its place when the last element is scrolled into view with all that is around it, as a
// browser does for the focus or a search in the page, or is covered, but by a dialog or the sidebar; or more scrolls.
function headerHasLeft() {
  [...document.querySelectorAll("h3, dialog[open] *, .answer *")].at(-1)?.scrollIntoView();
  const root = document.scrollingElement, header = document.querySelector("header").getBoundingClientRect();
  const middle = document.elementFromPoint(innerWidth - 4, header.height / 2);
  const covered = !middle.closest("header, dialog, #backdrop");
  return header.top !== 0 || covered || root.scrollTop !== 0 || root.scrollHeight > innerHeight;
}
