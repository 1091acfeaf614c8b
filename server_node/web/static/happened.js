// The list of what became of clusters, the newest first, all of it or one kind.

import { make, plural, reconcile, setText } from "./format.js";
import { moment_text } from "./now.js";

const at = (id) => document.getElementById(id);
const KINDS = {
  birth: "new", parted: "parted", merged: "merged", returned: "returned", quiet: "quiet", gone: "gone",
  share_moved: "share moved", named: "named",
};

export class Happened {
  constructor() {
    this.kind = "";
  }

  // `clustering` is null before the first snapshot.
  show(clustering, now) {
    [this.clustering, this.now] = [clustering, now];
    const events = clustering?.events ?? [];
    if (!events.some(({ kind }) => kind === this.kind)) this.kind = "";
    this.showKinds(events);
    const listed = events.filter(({ kind }) => !this.kind || kind === this.kind).reverse();
    reconcile(
      at("events"), listed, ({ at: moment, kind, cluster, other }) => `${moment}/${kind}/${cluster}/${other}`,
      ({ kind }) => make("li", { class: kind }, make("time"), make("span")),
      (item, event) => {
        item.firstChild.dateTime = new Date(event.at * 1000).toISOString();
        setText(item.firstChild, moment_text(event.at, now));
        setText(item.lastChild, event.text);
      },
    );
    setText(at("events-note"), events.length ? `The newest ${plural(events.length, "event")}; the topic of events has all.` : "Nothing has happened yet.");
  }

  showKinds(events) {
    const present = Object.keys(KINDS).filter((name) => events.some(({ kind }) => kind === name));
    at("kinds").hidden = present.length < 2;
    reconcile(
      at("kinds"), ["", ...present], (name) => name || "all",
      (name) => {
        const button = make("button", { type: "button" });
        button.addEventListener("click", () => {
          this.kind = name;
          this.show(this.clustering, this.now);
        });
        return button;
      },
      (button, name) => {
        const number = events.filter(({ kind }) => !name || kind === name).length;
        setText(button, `${name ? KINDS[name] : "all"} ${number}`);
        const pressed = String(name === this.kind);
        if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
      },
    );
  }
}
