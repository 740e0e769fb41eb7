// Search of a site that was opened from a folder: browsers start no Worker for file:// addresses.
// This class runs the script in a hidden frame instead, with the part of Worker's interface that the theme uses.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      const base = new URL(url, location.href)
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script")
          script.src = new URL(address, base)
          script.onload = resolve
          script.onerror = reject
          inside.document.body.append(script)
        })
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      this.ready = load(base)
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
