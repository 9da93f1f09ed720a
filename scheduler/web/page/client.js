// Requests to the scheduler. The token is in sessionStorage, which ends with the tab and belongs to this origin: it is in no URL and no
// cookie, so no other page can make the browser send it.
const KEY = "gpupool.token";
const TIMEOUT_MS = 20000;

export const token = () => sessionStorage.getItem(KEY) || "";
export const keepToken = text => sessionStorage.setItem(KEY, text);
export const forgetToken = () => sessionStorage.removeItem(KEY);

export class Refused extends Error {}  // the scheduler wants another token

// Fetches JSON from a path relative to the page, so that a reverse proxy may serve it below a folder. Throws Refused, or an Error that says
// what failed.
export async function ask(path) {
  const headers = token() ? {Authorization: `Bearer ${token()}`} : {};
  const reply = await fetch(path, {cache: "no-store", redirect: "error", headers, signal: AbortSignal.timeout(TIMEOUT_MS)});
  if (reply.ok) return reply.json();
  const text = (await reply.text()).trim().slice(0, 500) || `status ${reply.status}`;
  throw reply.status === 401 || reply.status === 403 ? new Refused(text) : new Error(`it answered "${text}"`);
}
