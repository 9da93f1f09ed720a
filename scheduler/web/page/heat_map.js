// The heat map: a tile for each node, grouped by rack, with a cell for each GPU. Thousands of cells: each is one element, and is written to
// only where its colour or its title has changed.
import {keep, make, set, write} from "./dom.js";
import {bytes, share} from "./format.js";
import {filterOf, TENANT_COLOURS, textsOfNode} from "./pool.js";
import {nodeHash} from "./route.js";
import {nodeText} from "./words.js";

const LEVELS = 6;
export const COLOUR_NAMES = {use: "time used", memory: "memory used", leased: "time leased", tenant: "tenant"};

// Level 0 is nothing, level 6 from five sixths on.
function levelOf(part) {
  return part <= 0 ? 0 : Math.min(LEVELS, 1 + Math.floor(part * LEVELS));
}

// The class that colours a GPU's cell.
export function colourClass(gpu, kind, pool) {
  if (kind === "tenant") {
    const leases = pool.leasesOfGpu(gpu);
    if (!leases.length) return "level-0";
    const shared = leases.some(one => one.lease.tenant !== leases[0].lease.tenant);
    return `tenant-${pool.colourOf(leases[0].lease.tenant)}${shared ? " is-shared" : ""}`;
  }
  if (kind === "memory") return `level-${gpu.memory_bytes ? levelOf(gpu.memory_used_bytes / gpu.memory_bytes) : "unknown"}`;
  if (kind === "leased") return `level-${levelOf(gpu.compute_milli_leased / 1000)}`;
  return gpu.compute_milli_used === null || gpu.compute_milli_used === undefined ? "level-unknown" : `level-${levelOf(gpu.compute_milli_used / 1000)}`;
}

const usedText = gpu => gpu.compute_milli_used === null || gpu.compute_milli_used === undefined ? "not known" : share(gpu.compute_milli_used);
function cellTitle(gpu, pool) {
  const tenants = [...new Set(pool.leasesOfGpu(gpu).map(one => one.lease.tenant))];
  return `GPU ${gpu.index}, ${gpu.model}\ntime: ${share(gpu.compute_milli_leased)} leased, ${usedText(gpu)} used\n` +
    `memory: ${bytes(gpu.memory_bytes_leased)} leased, ${bytes(gpu.memory_used_bytes)} used, of ${bytes(gpu.memory_bytes)}\n` +
    `tenants: ${tenants.join(", ") || "none"}${gpu.withheld_because ? `\nno leases: ${gpu.withheld_because}` : ""}`;
}

function tileLabel(node) {
  const leased = node.gpus.reduce((all, gpu) => all + gpu.compute_milli_leased, 0), known = node.gpus.filter(gpu => typeof gpu.compute_milli_used === "number");
  const used = known.length ? `, ${share(known.reduce((all, gpu) => all + gpu.compute_milli_used, 0) / known.length)} of their time used` : "";
  return `${node.name}, ${nodeText(node)}: ${node.gpus.length} GPUs, ${share(node.gpus.length ? leased / node.gpus.length : 0)} of their time leased${used}`;
}

export const placeOf = node => [node.zone, node.rack ? `rack ${node.rack}` : ""].filter(Boolean).join(", ");

function groupsOf(nodes) {
  const groups = new Map();
  for (const node of nodes) {
    const title = placeOf(node);
    groups.set(title, [...groups.get(title) || [], node]);
  }
  return [...groups].sort(([a], [b]) => a.localeCompare(b, undefined, {numeric: true}));
}

export class HeatMap {
  constructor() {
    this.key = make("ul", {class: "key", "aria-label": "Colours"});
    this.groups = make("div", {id: "map"});
    this.none = make("p", {class: "quiet"}, "no node matches the filter");
    this.element = make("div", {}, this.key, this.groups, this.none);
  }

  show(pool, route) {
    const matches = filterOf(route.q);
    const nodes = matches.isEmpty ? pool.nodes : pool.nodes.filter(node => matches(textsOfNode(node, pool)));
    this.none.hidden = nodes.length > 0 || pool.nodes.length === 0;
    this.showKey(pool, route.colour);
    const groups = groupsOf(nodes);
    keep(this.groups, groups, ([title]) => title,
      () => make("section", {}, make("h3"), make("div", {class: "map"})),
      (section, [title, list]) => {
        const [heading, map] = section.children;
        write(heading, title || "no rack given");
        heading.hidden = title === "" && groups.length === 1;
        keep(map, list, node => node.name, () => this.createTile(), (tile, node) => this.updateTile(tile, node, pool, route));
      });
  }

  createTile() {
    return make("a", {class: "tile"}, make("span", {class: "name"}, make("bdi")), make("span", {class: "condition"}), make("span", {class: "cells", "aria-hidden": "true"}));
  }

  updateTile(tile, node, pool, route) {
    const [name, condition, cells] = tile.children;
    set(tile, "href", nodeHash(node.name, route));
    set(tile, "aria-label", tileLabel(node));
    set(tile, "title", nodeText(node));
    write(name.firstChild, node.name);
    write(condition, node.condition === "open" ? "" : node.condition);
    keep(cells, node.gpus, gpu => gpu.index, () => make("span"), (cell, gpu) => {
      const closed = gpu.withheld_because || ["lost", "stopped", "fenced"].includes(node.condition) ? " is-closed" : "";
      set(cell, "class", `cell ${colourClass(gpu, route.colour, pool)}${closed}`);
      set(cell, "title", cellTitle(gpu, pool));
    });
  }

  showKey(pool, kind) {
    const entries = kind === "tenant"
      ? [...[...pool.colours].sort((a, b) => a[1] - b[1]).map(([tenant, colour]) => [`tenant-${colour}`, tenant]),
        ...(pool.tenants.length > TENANT_COLOURS ? [["tenant-others", "other tenants"]] : []), ["tenant-others is-shared", "several tenants"], ["level-0", "free"]]
      : [["level-0", "none"], ...[...Array(LEVELS).keys()].map(at => [`level-${at + 1}`, `${at === 0 ? "above 0" : `from ${Math.round(100 * at / LEVELS)}`} %`]),
        ...(kind === "leased" ? [] : [["level-unknown", "not known"]])];
    keep(this.key, [...entries, ["is-closed", "gets no leases"]], ([, words]) => words,
      () => make("li", {}, make("span", {}), make("bdi")),
      (item, [colour, words]) => {
        set(item.firstChild, "class", `cell ${colour}`);
        write(item.lastChild, words);
      });
  }
}
