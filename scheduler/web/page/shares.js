// Tenants' shares over time, as stacked areas from /history.json: each point covers its own time, so that a time without a leader is a gap.
// The line is the time that was used, the dashed line what the connected nodes have.
import {keep, make, makeSvg, set, write} from "./dom.js";
import {age, clock, gpus, local, utc} from "./format.js";

const WIDTH = 1000, HEIGHT = 100;
const STEP_MS = 30000;  // by which the chart moves on: between two steps nothing of it is written
export const SPANS = [["1 h", 3600e3], ["6 h", 6 * 3600e3], ["24 h", 24 * 3600e3]];

// Returns the areas to stack, lowest first: [{name, colour, values of the points}]. Tenants without a colour of their own are one area.
export function areasOf(history, points, colourOf) {
  const areas = new Map(), others = points.map(point => point[7]);
  points.forEach((point, at) => {
    for (const [index, milli] of point[6]) {
      const name = history.tenants[index], colour = colourOf(name);
      if (colour === "others") {
        others[at] += milli;
        continue;
      }
      if (!areas.has(name)) areas.set(name, {name, colour, values: points.map(() => 0)});
      areas.get(name).values[at] = milli;
    }
  });
  const list = [...areas.values()].sort((a, b) => a.colour - b.colour);
  if (others.some(value => value > 0)) list.push({name: "other tenants", colour: "others", values: others});
  return list;
}

export class Shares {
  constructor() {
    this.svg = makeSvg("svg", {class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img"});
    this.key = make("ul", {class: "key", "aria-label": "Tenants"});
    this.from = make("span");
    this.top = make("span");
    this.to = make("span");
    this.note = make("p", {class: "quiet"});
    this.span = SPANS[1][1];
    this.element = make("div", {}, this.spans(), this.svg, make("div", {class: "axis"}, this.from, this.top, this.to), this.key, this.note);
  }

  spans() {
    const list = make("fieldset", {}, make("legend", {}, "Show the last"));
    for (const [words, ms] of SPANS) {
      const input = make("input", {type: "radio", name: "span", value: ms, checked: ms === this.span});
      input.addEventListener("change", () => {
        this.span = ms;
        if (this.shown) this.show(...this.shown);
      });
      list.append(make("label", {}, input, ` ${words}`));
    }
    return make("div", {class: "tools"}, list);
  }

  show(history, pool) {
    this.shown = [history, pool];
    const end = Math.ceil(pool.now / STEP_MS) * STEP_MS, begin = end - this.span;
    const points = history.points.filter(point => point[1] > begin);
    const x = ms => Math.max(0, Math.min(WIDTH, WIDTH * (ms - begin) / this.span)).toFixed(1);
    const top = Math.max(1000, ...points.map(point => Math.max(point[2], point[3])));
    const y = milli => (HEIGHT - HEIGHT * 0.97 * milli / top).toFixed(2);
    const areas = areasOf(history, points, tenant => pool.colourOf(tenant));
    const below = points.map(() => 0);
    const shapes = areas.map(area => {
      const path = points.map((point, at) => {
        const low = below[at], high = below[at] += area.values[at];
        return high > low ? `M${x(point[0])} ${y(low)}V${y(high)}H${x(point[1])}V${y(low)}Z` : "";
      }).join("");
      return {key: area.name, class: `area tenant-${area.colour}`, path, title: area.name};
    });
    const line = value => points.map((point, at) => {
      if (value(point) === null) return "";
      const joined = at > 0 && value(points[at - 1]) !== null && points[at - 1][1] >= point[0];
      return `${joined ? "L" : "M"}${x(point[0])} ${y(value(point))}H${x(point[1])}`;
    }).join("");
    shapes.push({key: "\ncapacity", class: "capacity", path: line(point => point[2]), title: "GPUs of connected nodes"});
    shapes.push({key: "\nused", class: "used", path: line(point => point[4]), title: "GPUs used"});
    keep(this.svg, shapes, shape => shape.key, () => makeSvg("path"), (path, shape) => {
      set(path, "class", shape.class);
      set(path, "d", shape.path || null);
    });
    this.showWords(history, points, areas, {begin, end, top});
  }

  showWords(history, points, areas, {begin, end, top}) {
    const last = points.at(-1), now = area => gpus(area.values.at(-1) ?? 0);
    set(this.svg, "aria-label", `GPUs leased over the last ${age(end - begin)}: ${areas.map(area => `${area.name} ${now(area)} at the end`).join(", ") || "none"}`);
    write(this.from, clock(begin));
    set(this.from, "title", `${local(begin)}, ${utc(begin)}`);
    write(this.top, `top: ${gpus(top)} GPUs`);
    write(this.to, clock(end));
    set(this.to, "title", `${local(end)}, ${utc(end)}`);
    const entries = areas.map(area => [`tenant-${area.colour}`, `${area.name}: ${now(area)} GPUs`, area.name]);
    keep(this.key, entries, entry => entry[2], () => make("li", {}, make("span"), make("bdi")), (item, [colour, words]) => {
      set(item.firstChild, "class", `cell ${colour}`);
      write(item.lastChild, words);
    });
    const used = last && last[4] !== null ? ` Used at the end: ${gpus(last[4])} GPUs (thick line); dashed: GPUs of connected nodes.` : "";
    const begun = history.begun_ms ? `This scheduler has noted since ${local(history.begun_ms)}, in its memory: a restart, or another leader, begins anew, and what is older than ${age(history.kept_ms)} is dropped.` : "Nothing noted yet.";
    write(this.note, begun + used);
  }
}
