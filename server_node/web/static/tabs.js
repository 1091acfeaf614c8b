// One tab per model, chosen by pointer or by the arrow keys, Home and End.

import { reconcile, make, plural, setText } from "./format.js";

const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

export class Tabs {
  // `panel` is the element that the tabs control; `onChoose` gets the name of a model.
  constructor(list, panel, onChoose) {
    [this.list, this.panel, this.onChoose] = [list, panel, onChoose];
    list.addEventListener("keydown", (event) => this.move(event));
  }

  show(models, chosen) {
    this.list.hidden = models.length < 2;
    reconcile(this.list, models, ({ name }) => name, ({ name }) => this.tab(name), (tab, model) => {
      const selected = model === chosen;
      tab.ariaSelected = String(selected);
      tab.tabIndex = selected ? 0 : -1;
      const found = model.version && !model.waiting_for ? plural(model.clusters_total, "cluster") : "no clusters yet";
      setText(tab.lastChild, `${model.algorithm} · ${found}`);
    });
    if (this.list.hidden) return ["role", "aria-labelledby"].forEach((name) => this.panel.removeAttribute(name));
    this.panel.setAttribute("role", "tabpanel");
    this.panel.setAttribute("aria-labelledby", `tab-${chosen.name}`);
  }

  tab(name) {
    const tab = make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": this.panel.id },
      make("span", { class: "name" }, name), make("small"));
    tab.addEventListener("click", () => this.onChoose(name));
    return tab;
  }

  move(event) {
    const tabs = [...this.list.children];
    const from = tabs.indexOf(event.target);
    const to = { Home: 0, End: tabs.length - 1 }[event.key] ?? (from + MOVES[event.key] + tabs.length) % tabs.length;
    if (from < 0 || Number.isNaN(to)) return;
    event.preventDefault();
    tabs[to].focus();
    tabs[to].click();
    tabs[to].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
