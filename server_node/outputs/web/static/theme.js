// Sets the light or dark theme before the first paint: the system's, or the one chosen on this page and stored. Paper is light.

(() => {
  const KEY = "shoal-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  let chosen = "";
  try {
    chosen = localStorage.getItem(KEY) ?? "";
  } catch {
    // The browser may forbid storage; then the choice lasts until the page is closed.
  }
  if (!["light", "dark"].includes(chosen)) chosen = "";

  function apply() {
    document.documentElement.dataset.theme = paper.matches ? "light" : chosen || (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("theme"));
  }

  function choose(event) {
    chosen = event.target.value;
    apply();
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // As above.
    }
  }

  for (const medium of [system, paper]) medium.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = chosen;
    choice.addEventListener("change", choose);
  });
  apply();
})();
