// Sentences about the states of leases and nodes. Pure functions.
import {age, bytes, gpus, share} from "./format.js";

const since = (ms, now) => ms ? ` (since ${age(now - ms)})` : "";

export function suspensionText(its, now) {
  const words = {suspending: "being suspended", suspended: `suspended, ${bytes(its.bytes)}`, resuming: "being resumed", failed: "not suspended"};
  const reason = its.held && its.state === "suspended" ? ", held by an operator" : its.reason ? `: ${its.reason}` : "";
  return (words[its.state] || its.state) + since(its.since_ms, now) + reason;
}

export function moveText(move, now) {
  const words = {waiting: `waiting to move from ${move.from}`, moving: `moving from ${move.from} to ${move.to}`,
    back: `moving back from ${move.from} to ${move.to}`, leaving: `still on ${move.from}`, failed: `not moved from ${move.from}`};
  return (words[move.state] || move.state) + (move.state === "leaving" ? "" : since(move.since_ms, now)) + (move.reason ? `: ${move.reason}` : "");
}

// The state of a lease: held or not, moves, suspension, end.
export function leaseText(lease, now) {
  if (lease.ending) return `ending: ${lease.end}${lease.end_reason ? `, ${lease.end_reason}` : ""}`;
  const holder = lease.held ? "held" : "its holder is disconnected";
  return [holder, ...lease.moves.map(move => moveText(move, now)), ...(lease.suspension ? [suspensionText(lease.suspension, now)] : [])].join("; ");
}

// The sessions of a lease's parts: how many, how many of them wait for their client, and what was resumed so far.
export function sessionsText(parts) {
  const all = name => parts.reduce((total, part) => total + part[name], 0);
  const most = name => Math.max(0, ...parts.map(part => part[name]));
  const words = [String(all("sessions"))];
  if (all("sessions_waiting")) words.push(`${all("sessions_waiting")} waiting for their client (${age(most("waiting_ms"))})`);
  if (all("sessions_suspended")) words.push(`${all("sessions_suspended")} suspended (${age(most("suspended_ms"))}, ${bytes(all("suspended_bytes"))})`);
  if (all("resumed")) words.push(`resumed ${all("resumed")} times after ${(all("waited_ms") / 1000).toFixed(1)} s, ${bytes(all("resent_bytes"))} sent again`);
  return words.join(", ");
}

export function nodeText(node) {
  const because = node.because ? `: ${node.because}` : "";
  const also = node.drained && node.condition !== "drained" ? ", drained" : "";
  return `${node.condition}${because}${also}`;
}

export function movesOfNode(node) {
  return [[node.leases_leaving, "moving away"], [node.leases_to_move, "waiting to move"], [node.leases_not_moved, "not moved"],
    [node.leases_arriving, "arriving"], [node.leases_suspended, "suspended"]].filter(([count]) => count).map(([count, what]) => `${count} ${what}`).join(", ");
}

// A request in full: what it asks for, one clause each.
export function requestText(request) {
  const words = [`${request.gpus} GPU${request.gpus === 1 ? "" : "s"}`];
  if (request.compute_milli) words.push(`${share(request.compute_milli)} of each GPU's time`);
  if (request.memory_bytes) words.push(`${bytes(request.memory_bytes)} of each GPU's memory`);
  if (request.models.length) words.push(`models: ${request.models.join(", ")}`);
  if (request.one_host) words.push("on one host");
  if (request.cpu_milli) words.push(`${gpus(request.cpu_milli)} CPUs`);
  if (request.host_memory_bytes) words.push(`${bytes(request.host_memory_bytes)} of host memory`);
  if (request.near.length) words.push(`near ${request.near.join(", ")}`);
  if (request.apart_from.length) words.push(`apart from ${request.apart_from.join(", ")}`);
  if (request.labels.length) words.push(`labels: ${request.labels.join(", ")}`);
  words.push(request.mode, request.priority);
  return words.join("; ");
}

const EVENTS = new Map(Object.entries({lease_moving: "began to move", lease_moved: "moved", lease_moved_back: "moved back", lease_left_node: "left the node", lease_move_failed: "could not move",
  lease_suspending: "is being suspended", lease_suspended: "suspended", lease_not_suspended: "could not be suspended", lease_resuming: "is being resumed", lease_resumed: "resumed",
  node_attends: "joined", node_back: "came back", node_stopped: "was shut down", node_cut: "connection broke", node_lost: "lost", node_fenced: "fenced", node_unfenced: "no longer fenced",
  node_drained: "drained", node_undrained: "accepts leases again", node_removed: "removed", gpu_withheld: "a GPU gets no leases", gpu_not_withheld: "a GPU gets leases again", gpu_trusted: "a GPU is trusted"}));
const HIDDEN = new Set(["at_ms", "event", "lease", "tenant", "node", "from", "to", "reason"]);

// One event of /events.json.
export function eventText(event) {
  const route = event.from || event.to ? ` from ${event.from || "?"} to ${event.to || "?"}` : "";
  const rest = Object.entries(event).filter(([key, value]) => !HIDDEN.has(key) && value !== "").map(([key, value]) => `${key} ${value}`);
  return (EVENTS.get(event.event) || event.event) + route + (event.reason ? `: ${event.reason}` : "") + (rest.length ? ` (${rest.join(", ")})` : "");
}
