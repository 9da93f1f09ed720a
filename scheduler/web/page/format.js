// Numbers, sizes and times as people read them. Pure functions, except for the viewer's time zone and language.
export const gpus = milli => String(Math.round(milli) / 1000);
export const percent = (part, all) => all ? `${Math.round(100 * part / all)} %` : "-";
export const share = milli => `${Math.round(milli) / 10} %`;

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
export function bytes(count) {
  let at = 0;
  while (count >= 1024 && at + 1 < UNITS.length) {
    count /= 1024;
    ++at;
  }
  return `${at && count < 100 ? count.toFixed(1) : Math.round(count)} ${UNITS[at]}`;
}

export function age(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

const two = number => String(number).padStart(2, "0");
export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}`;
}
export const local = ms => new Date(ms).toLocaleString();
export const utc = ms => new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");

// A <time> in the viewer's zone, with UTC as its title. `text` is shown instead of the local time.
export function time(make, ms, text) {
  if (!ms) return "";
  return make("time", {datetime: new Date(ms).toISOString(), title: `${local(ms)}, ${utc(ms)}`}, text ?? local(ms));
}
