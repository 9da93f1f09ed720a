// Elements of the page. Text of the pool goes through textContent only, so that no name becomes markup. Elements are reused from refresh
// to refresh, and written to only where something has changed: no flicker, and focus, selection and scroll positions stay.

// make("td", {class: "number", title: "..."}, "text", element, ...)
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
export function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  return element;
}

// Sets an attribute, or removes it if the value is null, undefined or false.
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function write(element, text) {
  const words = text === null || text === undefined ? "" : String(text);
  if (element.textContent !== words) element.textContent = words;
}

// A name from the pool, isolated from the text around it whatever its writing direction. Long ones have a box of a fixed width, in which very
// long ones scroll, also by keyboard.
export function name(text) {
  const words = String(text ?? "");
  return make("bdi", {class: words.length > 40 ? "long" : null, tabindex: words.length > 200 ? "0" : null}, words);
}

// A sentence with names from the pool, shown in full.
export function sentence(text) {
  return make("bdi", {class: "sentence"}, String(text ?? ""));
}

export const link = (href, ...children) => make("a", {href}, ...children);

// Makes the children of `parent` those of `items`, in order. keyOf(item) names an item; create(item) makes its element, update(element, item)
// brings it up to date.
export function keep(parent, items, keyOf, create, update) {
  const old = parent.kept || new Map(), kept = new Map();
  const wanted = new Map();
  for (const item of items) if (!wanted.has(keyOf(item))) wanted.set(keyOf(item), item);
  for (const [key, element] of old) if (!wanted.has(key)) element.remove();  // first: the others then need not move, and keep the focus
  let next = parent.firstChild;
  for (const [key, item] of wanted) {
    const element = old.get(key) || create(item);
    update(element, item);
    kept.set(key, element);
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
  parent.kept = kept;
}

const MOST_ROWS = 500;
// A table whose rows are kept by keyOf(row). columns: [{title, value(row) -> text or element, kind: "number", "narrow" or nothing}].
// Explicit roles keep it a table for screen readers where small screens show each row as a block.
export class Table {
  constructor(caption, columns, keyOf, none) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.none = none;
    const head = make("tr", {role: "row"}, ...columns.map(one => make("th", {scope: "col", role: "columnheader", class: one.kind}, one.title)));
    this.body = make("tbody", {role: "rowgroup"});
    this.table = make("table", {role: "table"}, make("caption", {class: "hidden"}, caption), make("thead", {role: "rowgroup"}, head), this.body);
    this.note = make("p", {class: "quiet"});
    this.element = make("div", {class: "table"}, this.table, this.note);
  }

  show(rows) {
    this.table.hidden = rows.length === 0;
    const more = rows.length - MOST_ROWS;
    write(this.note, rows.length === 0 ? this.none : more > 0 ? `and ${more} more: use the filter` : "");
    this.note.hidden = this.note.textContent === "";
    keep(this.body, rows.slice(0, MOST_ROWS), this.keyOf, () => this.createRow(), (line, row) => this.updateRow(line, row));
  }

  createRow() {
    return make("tr", {role: "row"}, ...this.columns.map(one => make("td", {role: "cell", class: one.kind, "data-label": one.title}, make("span"))));
  }

  updateRow(line, row) {
    this.columns.forEach((column, at) => {
      const cell = line.children[at], value = column.value(row);
      showIn(cell.firstChild, value);
      cell.classList.toggle("is-empty", cell.textContent === "");
    });
  }
}

// Shows a text or an element. An element that looks like the present one does not replace it, so that focus stays.
export function showIn(box, value) {
  if (!(value instanceof Node)) return write(box, value);
  if (box.childNodes.length === 1 && box.firstChild.isEqualNode(value)) return;
  box.replaceChildren(value);
}

// A list of terms: show([[term, text or element], ...]) leaves out empty values.
export class Facts {
  constructor() {
    this.element = make("dl");
  }
  show(facts) {
    const wanted = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const flat = wanted.flatMap(([term, value]) => [{tag: "dt", key: `t${term}`, value: term}, {tag: "dd", key: `d${term}`, value}]);
    keep(this.element, flat, one => one.key, one => make(one.tag), (element, one) => showIn(element, one.value));
  }
}
