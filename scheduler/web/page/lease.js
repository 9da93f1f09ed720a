// The page of one lease: who has it, devices, use, state, and its moves and suspensions so far. Also the list of events.
import {Facts, link, make, name, sentence, Table, write} from "./dom.js";
import {age, bytes, gpus, share, time} from "./format.js";
import {computeOf, memoryOf} from "./pool.js";
import {leaseHash, nodeHash} from "./route.js";
import {eventText, leaseText, sessionsText} from "./words.js";

export class Events {
  constructor(none) {
    this.table = new Table("Events", [
      {title: "when", value: event => make("span", {}, time(make, event.at_ms), ` (${age(this.pool.now - event.at_ms)} ago)`)},
      {title: "lease", kind: "narrow", value: event => event.lease ? link(leaseHash(event.lease, this.route), event.lease.slice(0, 8)) : ""},
      {title: "what", value: event => sentence(eventText(event))},
    ], event => `${event.at_ms} ${event.event} ${event.lease || ""} ${event.from || ""} ${event.gpu || ""}`, `${none} The scheduler keeps the last 1000 in memory.`);
    this.element = this.table.element;
  }
  show(events, pool, route) {
    Object.assign(this, {pool, route});
    this.table.show([...events].reverse());
  }
}

function factsOf(lease, pool) {
  return [
    ["state", sentence(leaseText(lease, pool.now))],
    ["tenant", name(lease.tenant)],
    ["program", name(lease.program)],
    ["user's host", name(lease.host ? `${lease.host}, process ${lease.pid}` : "")],
    ["labels", name(lease.labels.join(", "))],
    ["priority", lease.priority],
    ["mode", lease.mode],
    ["granted", make("span", {}, time(make, lease.granted_ms), `, ${age(pool.now - lease.granted_ms)} ago`)],
    ["GPUs", `${gpus(computeOf(lease))}, ${bytes(memoryOf(lease))} of their memory`],
    ["sessions", sessionsText(lease.parts)],
    ["held until", lease.hold_until_ms ? time(make, lease.hold_until_ms) : ""],
    ["ends at", lease.end_at_ms ? time(make, lease.end_at_ms) : ""],
    ["not preempted before", lease.keeps_until_ms ? time(make, lease.keeps_until_ms) : ""],
    ["lease", name(lease.id)],
  ].map(([term, value]) => [term, value instanceof Node && value.textContent === "" ? "" : value]);
}

// The devices in the order in which the program sees them.
function devicesOf(lease, pool) {
  const devices = lease.parts.flatMap(part => part.shares.map(its => ({part, its, gpu: pool.node.get(part.node)?.gpus.find(gpu => gpu.uuid === its.gpu_uuid)})));
  return devices.map((device, at) => ({...device, at}));
}

export class LeasePage {
  constructor(_, id) {
    Object.assign(this, {id, title: `Lease ${id.slice(0, 8)}`, wants: ["events"]});
    this.facts = new Facts();
    this.devices = new Table("Devices", [
      {title: "device", kind: "number", value: one => String(one.at)},
      {title: "node", value: one => link(nodeHash(one.part.node, this.route), name(one.part.node))},
      {title: "GPU", value: one => name(one.gpu ? `${one.gpu.index}, ${one.gpu.model}` : one.its.gpu_uuid)},
      {title: "time", kind: "number", value: one => share(one.its.compute_milli)},
      {title: "memory", kind: "number", value: one => bytes(one.its.memory_bytes)},
      {title: "the GPU's use", kind: "number", value: one => one.gpu && typeof one.gpu.compute_milli_used === "number" ? share(one.gpu.compute_milli_used) : "not known"},
      {title: "sessions", value: one => sentence(sessionsText([one.part]))},
      {title: "allocated", value: one => one.part.allocated ? "yes" : "no, suspended"},
    ], one => `${one.part.node} ${one.its.gpu_uuid}`, "No devices.");
    this.events = new Events("No move or suspension noted.");
    this.gone = make("p", {class: "bad"});
    this.rest = make("div", {}, this.facts.element, make("h2", {}, "Devices"), this.devices.element);
    this.element = make("div", {}, make("h1", {}, "Lease ", name(id.slice(0, 8))), this.gone, this.rest, make("h2", {}, "Moves and suspensions"), this.events.element);
  }

  show(pool, route, more) {
    this.route = route;
    const lease = pool.lease.get(this.id);
    write(this.gone, lease ? "" : "There is no such lease: it has ended, or its id is wrong. The scheduler's audit file has ended leases.");
    this.rest.hidden = !lease;
    if (more.events) this.events.show(more.events.filter(event => event.lease === this.id), pool, route);
    if (!lease) return;
    this.facts.show(factsOf(lease, pool));
    this.devices.show(devicesOf(lease, pool));
  }
}
