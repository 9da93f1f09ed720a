// The first page: totals, heat map, tenants' shares over time, queue, leases, tenants. Also the pages that show one table of it alone.
import {keep, make, write} from "./dom.js";
import {bytes, gpus, percent} from "./format.js";
import {COLOUR_NAMES, HeatMap} from "./heat_map.js";
import {COLOURS} from "./route.js";
import {Shares} from "./shares.js";
import {Leases, Queue, Tenants} from "./tables.js";

function totalsOf(pool) {
  const totals = pool.totals, used = totals.compute_milli_used, bad = pool.unhealthy().length;
  const held = pool.nodes.flatMap(node => node.gpus);
  const memoryUsed = held.reduce((all, gpu) => all + gpu.memory_used_bytes, 0);
  return [
    ["nodes", `${totals.nodes_open} of ${totals.nodes}`, "nodes accept leases"],
    ["bad", String(bad), "nodes have a problem", bad > 0],
    ["leased", `${gpus(totals.compute_milli_leased)} of ${gpus(totals.compute_milli)}`, `GPUs leased (${percent(totals.compute_milli_leased, totals.compute_milli)})`],
    ["used", typeof used === "number" ? percent(used, totals.compute_milli) : "not known", "of the GPUs' time used"],
    ["memory", percent(totals.memory_bytes_leased, totals.memory_bytes), `of ${bytes(totals.memory_bytes)} memory leased`],
    ["memory-used", percent(memoryUsed, totals.memory_bytes), "of the memory used"],
    ["leases", String(totals.leases), `leases${totals.leases_suspended ? `, ${totals.leases_suspended} suspended` : ""}`],
    ["waiting", String(totals.waiting), totals.waiting === 1 ? "request waits" : "requests wait"],
  ];
}

class Totals {
  constructor() {
    this.element = make("ul", {class: "totals", "aria-label": "Totals"});
  }
  show(pool) {
    keep(this.element, totalsOf(pool), one => one[0], ([key]) => make("li", {"data-total": key}, make("b"), make("span")), (item, [, value, words, bad]) => {
      write(item.firstChild, value);
      write(item.lastChild, words);
      item.classList.toggle("is-bad", Boolean(bad));
    });
  }
}

class ColourChoice {
  constructor(change) {
    this.inputs = COLOURS.map(kind => {
      const input = make("input", {type: "radio", name: "colour", value: kind});
      input.addEventListener("change", () => change({colour: kind}));
      return input;
    });
    const labels = this.inputs.map(input => make("label", {}, input, ` ${COLOUR_NAMES[input.value]}`));
    this.element = make("div", {class: "tools"}, make("fieldset", {id: "colours"}, make("legend", {}, "Colour by"), ...labels));
  }
  show(kind) {
    for (const input of this.inputs) input.checked = input.value === kind;
  }
}

export class Overview {
  constructor(context) {
    this.title = "Overview";
    Object.assign(this, {totals: new Totals(), colours: new ColourChoice(context.change), map: new HeatMap(), shares: new Shares(), queue: new Queue(), leases: new Leases(), tenants: new Tenants()});
    const part = (id, title, ...inside) => make("section", {id, "aria-labelledby": `${id}-title`}, make("h2", {id: `${id}-title`}, title), ...inside);
    this.element = make("div", {}, make("h1", {}, "Pool"), this.totals.element,
      part("gpus", "GPUs", this.colours.element, this.map.element),
      part("shares", "Tenants' shares over time", this.shares.element),
      part("queue", "Queue", this.queue.element), part("leases", "Leases", this.leases.element), part("tenants", "Tenants", this.tenants.element));
    this.wants = ["history"];
  }
  show(pool, route, more) {
    this.totals.show(pool);
    this.colours.show(route.colour);
    this.map.show(pool, route);
    if (more.history) this.shares.show(more.history, pool);
    this.queue.show(pool, route);
    this.leases.show(pool, route);
    this.tenants.show(pool, route);
  }
}

// One table on a page of its own.
export class TablePage {
  constructor(title, table) {
    Object.assign(this, {title, table, wants: []});
    this.element = make("div", {}, make("h1", {}, title), table.element);
  }
  show(pool, route) {
    this.table.show(pool, route);
  }
}
