// The part of the URL behind "#": "#/", "#/queue", "#/leases", "#/tenants", "#/nodes/NAME" or "#/leases/ID", and "?q=TEXT&colour=KIND".
export const COLOURS = ["use", "memory", "leased", "tenant"];

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const slash = path.indexOf("/");
  const page = slash < 0 ? path : path.slice(0, slash);
  const options = new URLSearchParams(query || "");
  const colour = options.get("colour");
  return {page, id: slash < 0 ? "" : decode(path.slice(slash + 1)), q: options.get("q") || "", colour: COLOURS.includes(colour) ? colour : COLOURS[0]};
}

export function hashOf(route) {
  const path = route.id ? `${route.page}/${encodeURIComponent(route.id)}` : route.page;
  const options = new URLSearchParams();
  if (route.q) options.set("q", route.q);
  if (route.colour && route.colour !== COLOURS[0]) options.set("colour", route.colour);
  const query = options.toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

export const nodeHash = (node, route) => hashOf({...route, page: "nodes", id: node});
export const leaseHash = (lease, route) => hashOf({...route, page: "leases", id: lease});
