// The switch between light and dark, kept in localStorage where the browser allows it.
import {set} from "./dom.js";

const KEY = "gpupool.theme";

function stored() {
  try {
    return localStorage.getItem(KEY) || "auto";
  } catch {
    return "auto";
  }
}

export function startAppearance(select) {
  const apply = value => set(document.documentElement, "data-theme", value === "auto" ? null : value);
  select.value = ["light", "dark"].includes(stored()) ? stored() : "auto";
  apply(select.value);
  select.addEventListener("change", () => {
    apply(select.value);
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // private windows: the choice lasts as long as the page
    }
  });
}
