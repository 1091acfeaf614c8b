// The nodes of a model, for its map: read when its clustering has changed, and after the first time only while the map is
// on the screen, because they are most of what a clustering holds.

const EVERY_MS = 1000;

export class Nodes {
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
    const response = await fetch(`nodes?model=${encodeURIComponent(wanted.model)}`).catch(() => null);
    const nodes = response?.ok ? await response.json().catch(() => null) : null;
    if (nodes) this.read = { ...wanted, nodes };
    if (nodes) this.onNodes();
    setTimeout(() => {
      this.reading = false;
      this.readAgain();
    }, EVERY_MS);
  }
}
