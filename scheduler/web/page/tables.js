// Tables of requests, leases, tenants and nodes, each with a filter of its own kind.
import {link, make, name, sentence, Table} from "./dom.js";
import {age, bytes, gpus, percent, time} from "./format.js";
import {computeOf, filterOf, memoryOf, textsOfLease, textsOfWaiting} from "./pool.js";
import {leaseHash, nodeHash} from "./route.js";
import {leaseText, requestText, sessionsText} from "./words.js";

const agoOf = (pool, ms) => time(make, ms, age(pool.now - ms));

// What all of them have: show(pool, route) with the rows that match the filter.
class Filtered {
  constructor(caption, columns, keyOf, none) {
    const bound = columns.map(column => ({...column, value: row => column.value(row, this.pool, this.route)}));
    this.table = new Table(caption, bound, keyOf, none);
    this.element = this.table.element;
  }
  show(pool, route, rows) {
    this.pool = pool;
    this.route = route;
    this.table.show(rows);
  }
}

export class Queue extends Filtered {
  constructor() {
    super("Requests in the queue", [
      {title: "place", kind: "number", value: one => `${one.place}${one.head ? " (head)" : ""}`},
      {title: "id", kind: "narrow", value: one => one.id},
      {title: "tenant", value: one => name(one.tenant)},
      {title: "since", kind: "number", value: (one, pool) => agoOf(pool, one.since_ms)},
      {title: "request", value: one => sentence(requestText(one.request))},
      {title: "program", value: one => name(one.request.program)},
      {title: "from", value: one => name(one.request.host ? `${one.request.host}, process ${one.request.pid}` : "")},
      {title: "waits because", value: one => sentence(one.why)},
    ], one => one.id, "No request waits.");
  }
  show(pool, route) {
    const matches = filterOf(route.q);
    super.show(pool, route, pool.waiting.filter(one => matches(textsOfWaiting(one))));
  }
}

export const nodesOf = (lease, route) => {
  const list = make("span");
  lease.parts.forEach((part, at) => list.append(at ? ", " : "", link(nodeHash(part.node, route), name(part.node))));
  return list;
};

export class Leases extends Filtered {
  constructor() {
    super("Leases", [
      {title: "lease", kind: "narrow", value: (lease, _, route) => link(leaseHash(lease.id, route), lease.id.slice(0, 8))},
      {title: "tenant", value: lease => name(lease.tenant)},
      {title: "GPUs", kind: "number", value: lease => gpus(computeOf(lease))},
      {title: "memory", kind: "number", value: lease => bytes(memoryOf(lease))},
      {title: "nodes", value: (lease, _, route) => nodesOf(lease, route)},
      {title: "sessions", value: lease => sentence(sessionsText(lease.parts))},
      {title: "priority", value: lease => lease.priority},
      {title: "program", value: lease => name(lease.program)},
      {title: "host", value: lease => name(lease.host)},
      {title: "labels", value: lease => name(lease.labels.join(", "))},
      {title: "age", kind: "number", value: (lease, pool) => agoOf(pool, lease.granted_ms)},
      {title: "state", value: (lease, pool) => sentence(leaseText(lease, pool.now))},
    ], lease => lease.id, "No leases.");
  }
  show(pool, route, of = pool.leases) {
    const matches = filterOf(route.q);
    super.show(pool, route, of.filter(lease => matches(textsOfLease(lease))));
  }
}

export class Tenants extends Filtered {
  constructor() {
    super("Tenants", [
      {title: "tenant", value: tenant => this.tenantCell(tenant)},
      {title: "leases", kind: "number", value: tenant => String(tenant.leases)},
      {title: "waiting", kind: "number", value: tenant => String(tenant.waiting)},
      {title: "GPUs", kind: "number", value: tenant => gpus(tenant.compute_milli)},
      {title: "of the pool", kind: "number", value: (tenant, pool) => percent(tenant.compute_milli, pool.totals.compute_milli)},
      {title: "GPU quota", kind: "number", value: tenant => tenant.quota && tenant.quota.compute_milli ? gpus(tenant.quota.compute_milli) : "none"},
      {title: "memory", kind: "number", value: tenant => bytes(tenant.memory_bytes)},
      {title: "dominant share", kind: "number", value: tenant => `${(100 * tenant.dominant_share).toFixed(1)} %`},
      {title: "GPU hours", kind: "number", value: tenant => (tenant.gpu_milli_seconds / 3.6e6).toFixed(1)},
    ], tenant => tenant.name, "No tenants.");
  }
  tenantCell(tenant) {
    return make("span", {}, make("span", {class: `cell tenant-${this.pool.colourOf(tenant.name)}`, "aria-hidden": "true"}), " ", name(tenant.name));
  }
  show(pool, route) {
    const matches = filterOf(route.q);
    super.show(pool, route, pool.tenants.filter(tenant => matches([tenant.name])));
  }
}
