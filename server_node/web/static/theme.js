// Light or dark, before anything is drawn: as the system has it, or as was chosen on this page and remembered.

(() => {
  const KEY = "shoal-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "";
  try {
    chosen = localStorage.getItem(KEY) ?? "";
  } catch {
    // Storage may be forbidden; then nothing is remembered.
  }
  if (!["light", "dark"].includes(chosen)) chosen = "";

  function apply() {
    document.documentElement.dataset.theme = chosen || (system.matches ? "dark" : "light");
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

  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = chosen;
    choice.addEventListener("change", choose);
  });
  apply();
})();
