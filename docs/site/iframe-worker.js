// Search of a site that was opened from a folder: browsers start no Worker for file:// addresses.
// This class runs the script in a hidden frame instead, with the part of Worker's interface that the theme uses.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      this.inside = this.frame.contentWindow
      this.inside.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }))
      this.ready = new Promise((resolve) => {
        const script = this.inside.document.createElement("script")
        script.src = new URL(url, location.href)
        script.onload = resolve
        script.onerror = (event) => this.onerror?.(event)
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      const inside = this.inside
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
