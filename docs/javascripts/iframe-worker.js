// Search in a site that is opened as a file. Browsers start no Worker from file://, so a hidden frame
// does its work. Material's plugin `offline` would fetch such a script from the internet.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      const load = (source) => new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script");
        Object.assign(script, { src: source, onload: resolve, onerror: reject });
        this.inner.document.body.append(script);
      });
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }
  };
}
