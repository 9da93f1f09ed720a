// The page of one node: condition, GPUs with the leases that share them, leases and sessions, events.
import {Facts, keep, link, make, makeSvg, name, sentence, set, showIn, write} from "./dom.js";
import {age, bytes, gpus, share, time} from "./format.js";
import {placeOf} from "./heat_map.js";
import {Events} from "./lease.js";
import {leaseHash} from "./route.js";
import {Leases} from "./tables.js";
import {movesOfNode, nodeText} from "./words.js";

const count = (number, words) => `${number} ${words}${number === 1 ? "" : "s"}`;

function factsOf(node, pool) {
  const heard = node.heard_ms ? make("span", {}, time(make, node.heard_ms, `${age(pool.now - node.heard_ms)} ago`)) : "never";
  return [
    ["condition", make("span", {class: node.condition === "open" ? null : "bad"}, sentence(nodeText(node)))],
    ["since", node.since_ms ? make("span", {}, time(make, node.since_ms), `, ${age(pool.now - node.since_ms)}`) : ""],
    ["drained", node.drained ? `yes${node.moves_away ? ", its leases move to other nodes" : ""}` : "no"],
    ["leases end here", node.evict_at_ms ? time(make, node.evict_at_ms) : ""],
    ["last heartbeat", heard],
    ["clock", Math.abs(node.clock_ahead_ms) > 1000 ? `${age(Math.abs(node.clock_ahead_ms))} ${node.clock_ahead_ms > 0 ? "ahead of" : "behind"} the scheduler's` : "agrees with the scheduler's"],
    ["leases", count(node.leases, "lease") + (movesOfNode(node) ? ` (${movesOfNode(node)})` : "")],
    ["sessions", count(pool.leasesOfNode(node.name).flatMap(lease => lease.parts).filter(part => part.node === node.name).reduce((all, part) => all + part.sessions, 0), "session")],
    ["CPUs", node.cpu_milli ? `${gpus(node.cpu_milli_leased)} of ${gpus(node.cpu_milli)} leased` : ""],
    ["host memory", node.host_memory_bytes ? `${bytes(node.host_memory_bytes_leased)} of ${bytes(node.host_memory_bytes)} leased` : ""],
    ["room for suspended sessions", node.suspension_memory_bytes === null ? "" : `${bytes(node.suspension_memory_bytes)} in memory, ${bytes(node.suspension_disk_bytes)} on disk`],
    ["place", name(placeOf(node))],
    ["addresses", name(node.addresses.join(", "))],
    ["poold", name(node.version)],
  ].map(([term, value]) => [term, value instanceof Node && value.textContent === "" ? "" : value]);
}

class GpuBox {
  constructor() {
    this.heading = make("h3");
    this.bar = makeSvg("svg", {class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img"});
    this.facts = new Facts();
    this.shares = make("ul");
    this.element = make("li", {}, this.heading, this.bar, this.facts.element, this.shares);
  }

  show(gpu, pool, route) {
    showIn(this.heading, make("span", {}, `GPU ${gpu.index}: `, name(gpu.model)));
    const parts = pool.leasesOfGpu(gpu);
    set(this.bar, "aria-label", `${share(gpu.compute_milli_leased)} of its time leased to ${count(parts.length, "lease")}`);
    let at = 0;
    const bars = parts.map(({lease, share: its}) => ({lease, from: at, to: at += its.compute_milli}));
    keep(this.bar, bars, one => one.lease.id, () => makeSvg("rect", {y: 0, height: 10}), (rect, one) => {
      set(rect, "class", `tenant-${pool.colourOf(one.lease.tenant)}`);
      set(rect, "x", one.from);
      set(rect, "width", Math.max(0, one.to - one.from - 4));
    });
    this.facts.show([
      ["time used", typeof gpu.compute_milli_used === "number" ? share(gpu.compute_milli_used) : "not known"],
      ["memory", `${bytes(gpu.memory_used_bytes)} used, ${bytes(gpu.memory_bytes_leased)} leased, of ${bytes(gpu.memory_bytes)}`],
      ["kept for the head of the queue", gpu.compute_milli_reserved || gpu.memory_bytes_reserved ? `${share(gpu.compute_milli_reserved)} of its time, ${bytes(gpu.memory_bytes_reserved)}` : ""],
      ["UUID", name(gpu.uuid)],
      ["no leases", gpu.withheld_because ? make("span", {class: "bad"}, sentence(gpu.withheld_because)) : ""],
    ]);
    keep(this.shares, parts, one => one.lease.id, () => make("li", {}, make("span")), (item, {lease, share: its}) =>
      showIn(item.firstChild, make("span", {}, link(leaseHash(lease.id, route), lease.id.slice(0, 8)), " of ", name(lease.tenant), `: ${share(its.compute_milli)} of its time, ${bytes(its.memory_bytes)}`)));
  }
}

export class NodePage {
  constructor(_, id) {
    Object.assign(this, {id, title: `Node ${id}`, wants: ["events"]});
    this.facts = new Facts();
    this.gpus = make("ul", {class: "gpus"});
    this.leases = new Leases();
    this.events = new Events("Nothing noted about this node.");
    this.gone = make("p", {class: "bad"});
    this.rest = make("div", {}, this.facts.element, make("h2", {}, "GPUs"), this.gpus, make("h2", {}, "Leases"), this.leases.element);
    this.element = make("div", {}, make("h1", {}, "Node ", name(id)), this.gone, this.rest, make("h2", {}, "Events"), this.events.element);
  }

  show(pool, route, more) {
    const node = pool.node.get(this.id);
    write(this.gone, node ? "" : "No node has this name.");
    this.rest.hidden = !node;
    if (more.events) this.events.show(more.events.filter(event => event.node === this.id || event.from === this.id || event.to === this.id), pool, route);
    if (!node) return;
    this.facts.show(factsOf(node, pool));
    keep(this.gpus, node.gpus, gpu => gpu.index, () => {
      const box = new GpuBox();
      box.element.box = box;
      return box.element;
    }, (element, gpu) => element.box.show(gpu, pool, route));
    this.leases.show(pool, {...route, q: ""}, pool.leasesOfNode(this.id));
  }
}
