// What stands low on the page: its scripts come after the first picture.

import { drawHistory } from "./chart.js";
import { Clients } from "./clients.js";
import { Clusters } from "./clusters.js";
import { showCounters } from "./counters.js";
import { showDifferences } from "./differ.js";
import { showFeeds } from "./feeds.js";
import { clientsOf } from "./observed.js";
import { showPrivacy, showRejected } from "./privacy.js";
import { showRegions } from "./regions.js";
import { showRules } from "./rules.js";

const history = document.getElementById("history");

export class Below {
  // `onHover` and `onChoose` get the identity of a cluster; `onHover` null where the pointer leaves it.
  constructor(onHover, onChoose) {
    [this.clusters, this.clients] = [new Clusters(onHover, onChoose), new Clients()];
    [this.model, this.now] = [null, 0];
    this.privacyShown = ""; // digest of the contract whose privacy is shown
    new ResizeObserver(() => this.model && drawHistory(history, this.model.history, this.now)).observe(history);
  }

  // `pinned` is the identity of the chosen cluster, or null.
  show(status, model, pinned) {
    showDifferences(model);
    showFeeds(model);
    showRules(model);
    showRejected(status.rejected);
    this.pin(pinned);
    // Privacy changes only with the contract; not rendering it again keeps open what the user has unfolded.
    if (this.privacyShown !== status.contract) showPrivacy(status.privacy);
    this.privacyShown = status.contract;
  }

  pin(identity) {
    this.clusters.pin(identity);
  }

  // What changes with time alone: ages.
  tick(status, model, now) {
    [this.model, this.now] = [model, now];
    showCounters(status, model, now);
    this.clusters.show(model, now);
    this.clients.show(status, now);
    showRegions(status.regions, clientsOf(status, now));
    drawHistory(history, model.history, now);
  }
}
