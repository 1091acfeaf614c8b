// The panel of the map: the nodes of the model shown, or what is missing before there are any. Nodes and the script that
// draws them are most of what the page loads, so they come after its first picture.

import { at, make, plural, reconcile, setText } from "./format.js";

const EVERY_MS = 1000;

// The nodes of a model, for its map: read when its clustering has changed, and after the first time only while the map is on
// the screen, because they are most of what a clustering holds.
class Nodes {
  // Calls `onNodes` when others have been read.
  constructor(map, onNodes) {
    [this.onNodes, this.visible, this.reading, this.wanted, this.read] = [onNodes, false, false, null, null];
    new IntersectionObserver(([{ isIntersecting }]) => {
      this.visible = isIntersecting;
      this.readAgain();
    }, { rootMargin: "200px" }).observe(map);
  }

  // The nodes of this model, null before they are read.
  of(model) {
    return this.read?.model === model.name ? this.read.nodes : null;
  }

  follow(model, contract) {
    this.wanted = model.clustering ? { model: model.name, key: [contract, model.version, model.made_at].join("/") } : null;
    this.readAgain();
  }

  async readAgain() {
    const { wanted, read } = this;
    if (this.reading || !wanted) return;
    if (wanted.model === read?.model && (wanted.key === read.key || !this.visible)) return;
    this.reading = true;
    const response = await fetch(`v1/nodes?model=${encodeURIComponent(wanted.model)}`).catch(() => null);
    const nodes = response?.ok ? await response.json().catch(() => null) : null;
    if (nodes) this.read = { ...wanted, nodes };
    if (nodes) this.onNodes();
    setTimeout(() => {
      this.reading = false;
      this.readAgain();
    }, EVERY_MS);
  }
}

// The steps towards a first clustering, and which of them are done.
function showMissing(status, model) {
  const clients = status.clients_total;
  const steps = [
    ["log", status.ready, status.ready ? "The log is read" : "The log is being opened or read"],
    ["clients", clients > 0, clients ? `Updates of ${plural(clients, "client")}` : "An update of a client"],
    ["clustering", false, model.rounds && model.version ? "A first round of answers" : "A first clustering"],
  ];
  setText(at("waiting-for"), model.waiting_for);
  reconcile(at("missing"), steps, ([name]) => name, () => make("li", {}, make("span", { "aria-hidden": "true" }), make("span"), make("span", { class: "visually-hidden" })), (item, [, done, text]) => {
    item.classList.toggle("done", done);
    setText(item.children[0], done ? "✓" : "○");
    setText(item.children[1], text);
    setText(item.children[2], done ? " (done)" : " (missing)");
  });
}

export class MapPanel {
  constructor() {
    [this.model, this.map, this.script, this.pinned] = [null, null, null, null];
    this.nodes = new Nodes(at("map"), async () => {
      if (this.map || (await this.load())) this.draw();
    });
  }

  // Whether the script is there; while the server is away it is not.
  async load() {
    const script = await import("./map.js").catch(() => null);
    if (!script) return false;
    this.script = script;
    this.map ??= new script.NodeMap(at("map"), at("tip"), at("map-announcement"));
    this.map.pin(this.pinned);
    return true;
  }

  // `chosen` has the names of the features that are the axes.
  show(status, model, chosen) {
    if (this.model && this.model.name !== model.name) this.map?.reset();
    [this.status, this.model, this.chosen] = [status, model, chosen];
    this.nodes.follow(model, status.contract);
    this.draw();
  }

  // Highlights one cluster, by its identity: while the pointer is on it, or until it is unpinned.
  hover(identity) {
    this.map?.hover(identity);
  }

  pin(identity) {
    this.pinned = identity;
    this.map?.pin(identity);
  }

  draw() {
    const { status, model, chosen } = this;
    const learnt = Boolean(model.clustering) && !model.waiting_for;
    const drawn = learnt && this.map ? this.nodes.of(model) : null;
    const shown = Boolean(drawn?.nodes.id.length);
    at("empty").hidden = shown || (learnt && !drawn);
    at("axes").hidden = !shown;
    if (!at("empty").hidden) showMissing(status, model);
    if (!this.map) return;
    if (shown) this.script.offerAxes(drawn, chosen);
    this.map.setAxes(chosen.across ?? "", chosen.up ?? "");
    const note = status.privacy.adds_noise ? "A learnt prototype, not a reading." : "A prototype, learnt without privacy.";
    this.map.show(shown ? drawn : null, note, Boolean(model.rounds));
    this.script.describeMap(model, shown ? drawn : null, chosen);
  }
}
