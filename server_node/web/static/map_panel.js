// The panel of the map: the nodes of the model shown, or what is missing before there are any. Nodes and the scripts that
// draw them are most of what the page loads, so they come after its first picture.

import { showMissing } from "./missing.js";
import { Nodes } from "./nodes.js";

const at = (id) => document.getElementById(id);

export class MapPanel {
  constructor() {
    [this.model, this.map, this.text, this.pinned] = [null, null, null, null];
    this.nodes = new Nodes(at("map"), async () => {
      if (this.map || (await this.load())) this.draw();
    });
  }

  // Whether the scripts are there; while the server is away they are not.
  async load() {
    const scripts = await Promise.all([import("./map.js"), import("./map_text.js")]).catch(() => null);
    if (!scripts) return false;
    const [{ NodeMap }, text] = scripts;
    this.text = text;
    this.map ??= new NodeMap(at("map"), at("tip"), at("map-announcement"));
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
    if (shown) this.text.offerAxes(drawn, chosen);
    this.map.setAxes(chosen.across ?? "", chosen.up ?? "");
    const note = status.privacy.adds_noise ? "A learnt prototype, not a reading." : "A prototype, learnt without privacy.";
    this.map.show(shown ? drawn : null, note, Boolean(model.rounds));
    this.text.describeMap(model, shown ? drawn : null, chosen);
  }
}
