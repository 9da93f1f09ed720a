// The pool's state as the page uses it: indices over /pool.json, the order of tenants' colours, and the filter. No elements.
export const TENANT_COLOURS = 8;

export const gpuKey = (node, uuid) => `${node}\n${uuid}`;
export const sum = (lease, value) => lease.parts.reduce((all, part) => part.shares.reduce((a, one) => a + value(one), all), 0);
export const computeOf = lease => sum(lease, one => one.compute_milli);
export const memoryOf = lease => sum(lease, one => one.memory_bytes);

export class Pool {
  constructor(state) {
    Object.assign(this, {now: state.taken_ms, totals: state.pool, nodes: state.nodes, leases: state.leases, waiting: state.waiting, tenants: state.tenants});
    this.node = new Map(state.nodes.map(node => [node.name, node]));
    this.lease = new Map(state.leases.map(lease => [lease.id, lease]));
    this.onGpu = new Map();   // gpuKey -> [{lease, share}], the largest first
    this.onNode = new Map();  // node -> Set of leases
    for (const lease of state.leases) {
      for (const part of lease.parts) this.addPart(lease, part, part.allocated);
      for (const move of lease.moves) if (move.part) this.addPart(lease, move.part, true);
    }
    for (const list of this.onGpu.values()) list.sort((a, b) => b.share.compute_milli - a.share.compute_milli);
    this.colours = tenantColours(state.tenants);
  }

  addPart(lease, part, allocated) {
    const leases = this.onNode.get(part.node) || new Set();
    this.onNode.set(part.node, leases.add(lease));
    if (!allocated) return;
    for (const share of part.shares) {
      const key = gpuKey(part.node, share.gpu_uuid), list = this.onGpu.get(key) || [];
      list.push({lease, share});
      this.onGpu.set(key, list);
    }
  }

  leasesOfGpu(gpu) {
    return this.onGpu.get(gpuKey(gpu.node, gpu.uuid)) || [];
  }
  leasesOfNode(name) {
    return [...this.onNode.get(name) || []];
  }
  colourOf(tenant) {
    return this.colours.get(tenant) ?? "others";
  }
  unhealthy() {
    return this.nodes.filter(node => !["open", "drained"].includes(node.condition));
  }
}

// The tenants that have used most get a colour of their own, and keep it while they are among them.
const lasting = new Map();
function tenantColours(tenants) {
  const largest = [...tenants].sort((a, b) => b.gpu_milli_seconds - a.gpu_milli_seconds || (a.name < b.name ? -1 : 1)).slice(0, TENANT_COLOURS);
  const names = new Set(largest.map(tenant => tenant.name));
  for (const name of lasting.keys()) if (!names.has(name)) lasting.delete(name);
  const free = [...Array(TENANT_COLOURS).keys()].filter(colour => ![...lasting.values()].includes(colour));
  for (const name of names) if (!lasting.has(name)) lasting.set(name, free.shift());
  return new Map(lasting);
}

// A filter of words: each must be found, regardless of case, in one of the texts. matches(list of texts).
export function filterOf(q) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = texts => words.every(word => texts.some(text => String(text ?? "").toLowerCase().includes(word)));
  matches.isEmpty = words.length === 0;
  return matches;
}

export const textsOfLease = lease => [lease.id, lease.tenant, lease.program, lease.host, ...lease.labels, ...lease.parts.map(part => part.node)];
export const textsOfWaiting = one => [one.id, one.tenant, one.request.program, one.request.host, ...one.request.labels, ...one.request.models, one.why];
export function textsOfNode(node, pool) {
  const leases = pool.leasesOfNode(node.name).flatMap(lease => [lease.id, lease.tenant, lease.program, ...lease.labels]);
  return [node.name, node.rack, node.zone, node.condition, ...node.gpus.map(gpu => gpu.model), ...leases];
}
