"use strict";
// Browsers start no Worker from a file, so that a page that is read from a folder could not be
// searched. There this class is in its place: the script of the worker runs in a hidden frame. The
// site has one worker, that of the search, which uses no other part of a Worker than these.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.worker = this;
      this.loaded = new Promise((resolve) => {
        this.frame.addEventListener("load", resolve, { once: true });
      });
      // In a frame this name sends to the frame itself.
      const answers = `self.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        frameElement.worker.dispatchEvent(message);
      };`;
      const source = new URL(url, location.href);
      this.frame.srcdoc = `<script>${answers}</script><script src="${source}"></script>`;
      document.body.append(this.frame);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
