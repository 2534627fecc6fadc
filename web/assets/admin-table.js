// Tables of the dashboard, page by page.
import { el, fill, showProblem } from "./admin-dom.js";

/**
 * Returns a table of rows in a region that scrolls on narrow screens. caption names it. columns: title,
 * cell(row) (text, element or list), numeric, class ("wide": at least 14rem, wraps).
 */
export function plainTable({ caption, columns, rows }) {
  return region(caption, el("table", {}, head(columns), el("tbody", {}, rows.map((r) => rowOf(columns, r)))));
}

const region = (caption, grid) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, grid);

const head = (columns) => el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: classOf(c) }, c.title))));

const classOf = (c) => [c.numeric && "number", c.class].filter(Boolean).join(" ") || null;

const rowOf = (columns, row) => el("tr", {}, columns.map((c) => el("td", { class: classOf(c) }, c.cell(row))));

/**
 * Shows a table in a container, page by page, and returns { reload(), rows() }. columns: see plainTable.
 * load(cursor, signal) returns { rows, next }: the cursor of the next page, "" after the last; the first
 * call has the cursor "". empty: a text or element for a table without rows. A page without rows that
 * has a next one is skipped, up to 20 in a row.
 */
export function table(container, { caption, columns, load, empty = "Nothing to show." }) {
  let all = [];
  let next = "";
  let running = null;
  const body = el("tbody");
  const grid = region(caption, el("table", {}, head(columns), body));
  grid.hidden = true;
  const note = el("p", { class: "muted", role: "status" });
  const failure = el("div");
  const more = el("button", { type: "button", hidden: true, onclick: () => get(next, true) }, "Load more");
  fill(container, grid, note, failure, el("p", {}, more));

  const describe = (shown) => {
    grid.hidden = all.length === 0;
    more.hidden = !next;
    if (all.length) fill(note, next ? `${all.length} shown, more available.` : `${all.length} shown.`);
    else if (shown && next) fill(note, "Nothing found so far.");
    else fill(note, empty);
  };
  const pages = async (cursor, signal) => {
    for (let i = 0; ; i++) {
      const page = await load(cursor, signal);
      cursor = page.next || "";
      if (page.rows.length || !cursor || i === 19) return { rows: page.rows, next: cursor };
    }
  };
  const get = async (cursor, append) => {
    if (running) running.abort();
    const mine = (running = new AbortController());
    container.setAttribute("aria-busy", "true");
    more.disabled = true;
    showProblem(failure, null);
    fill(note, "Loading…");
    try {
      const page = await pages(cursor, mine.signal);
      if (running !== mine) return;
      if (!append) all = [];
      const from = all.length;
      all.push(...page.rows);
      next = page.next;
      const added = page.rows.map((r) => rowOf(columns, r));
      if (append) body.append(...added);
      else body.replaceChildren(...added);
      describe(true);
      if (append && added.length && from) focusOn(added[0]);
    } catch (error) {
      if (running !== mine) return;
      note.textContent = "";
      showProblem(failure, error, () => get(cursor, append));
    } finally {
      if (running === mine) {
        running = null;
        more.disabled = false;
        container.removeAttribute("aria-busy");
      }
    }
  };
  get("", false);
  return { reload: () => get("", false), rows: () => all };
}

// Keyboard users continue at the first new row.
function focusOn(row) {
  const target = row.querySelector("a, button");
  if (target) target.focus();
}

/**
 * Returns { element, update(rows) }: a table whose rows change in place, so that focus and selection
 * stay. key(row) identifies a row. A column's cell returns a text, or an element if sign(row) is given,
 * which says when the element has to be made again. empty: the text without rows.
 */
export function liveTable({ caption, columns, key, empty = "None." }) {
  const body = el("tbody");
  const grid = region(caption, el("table", {}, head(columns), body));
  const none = el("p", { class: "muted" }, empty);
  const known = new Map(); // by key: { row, cells, signs }
  grid.hidden = true;
  const make = (row) => {
    const cells = columns.map((c) => el("td", { class: classOf(c) }));
    return { row: el("tr", {}, cells), cells, signs: [] };
  };
  const show = (entry, row) => columns.forEach((c, i) => {
    const sign = c.sign ? c.sign(row) : c.cell(row);
    if (entry.signs[i] === sign) return;
    entry.signs[i] = sign;
    fill(entry.cells[i], c.sign ? c.cell(row) : sign);
  });
  const update = (rows) => {
    const present = new Set(rows.map(key));
    for (const [k, entry] of known) {
      if (present.has(k)) continue;
      entry.row.remove();
      known.delete(k);
    }
    rows.forEach((row, i) => {
      const k = key(row);
      if (!known.has(k)) known.set(k, make(row));
      const entry = known.get(k);
      show(entry, row);
      if (body.children[i] !== entry.row) body.insertBefore(entry.row, body.children[i] || null);
    });
    grid.hidden = rows.length === 0;
    none.hidden = rows.length > 0;
  };
  return { element: el("div", {}, grid, none), update };
}
