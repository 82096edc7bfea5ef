// Shows the anywidgets of a built page: no kernel, no RequireJS, no other host.
//
// The page carries every widget's state as JSON, its code (_esm) and style (_css) included. Each
// view is replaced by an element into which the widget's own render({model, el}) draws, with a model
// that keeps state here in the page (the front-end half of the anywidget contract).
(() => {
  function makeModel(state) {
    const listeners = new Map();
    const changed = new Set();
    const emit = (event) => [...(listeners.get(event) ?? [])].forEach((listener) => listener());
    return {
      get: (name) => state[name],
      set(name, value) {
        if (state[name] === value) return;
        state[name] = value;
        changed.add(name);
        emit("change:" + name);
      },
      save_changes() {
        if (changed.size) emit("change");
        changed.clear();
      },
      on(event, listener) {
        if (!listeners.has(event)) listeners.set(event, new Set());
        listeners.get(event).add(listener);
      },
      off(event, listener) {
        if (listener) listeners.get(event)?.delete(listener);
        else listeners.delete(event);
      },
      send() {}, // nobody listens: there is no kernel
    };
  }

  // Binary values travel beside the state, in base64.
  function putBuffers(entry) {
    for (const { path, data } of entry.buffers ?? []) {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      const holder = path.slice(0, -1).reduce((value, key) => value[key], entry.state);
      holder[path.at(-1)] = new DataView(bytes.buffer);
    }
  }

  async function load(entry) {
    putBuffers(entry);
    const url = URL.createObjectURL(new Blob([entry.state._esm], { type: "text/javascript" }));
    const module = await import(url);
    URL.revokeObjectURL(url);
    const widget = typeof module.default === "function" ? await module.default() : module.default;
    if (entry.state._css) {
      const style = document.createElement("style");
      style.textContent = entry.state._css;
      document.head.append(style);
    }
    const model = makeModel(entry.state);
    await widget.initialize?.({ model });
    return { widget, model };
  }

  async function mountAll() {
    const entries = {};
    const states = 'script[type="application/vnd.jupyter.widget-state+json"]';
    for (const script of document.querySelectorAll(states)) {
      Object.assign(entries, JSON.parse(script.textContent).state);
    }
    const loaded = new Map();
    const views = 'script[type="application/vnd.jupyter.widget-view+json"]';
    for (const script of document.querySelectorAll(views)) {
      const id = JSON.parse(script.textContent).model_id;
      const entry = entries[id];
      const el = document.createElement("div");
      el.className = "widget-subarea anywidget";
      if (entry?.model_module !== "anywidget") continue;
      script.replaceWith(el);
      try {
        if (!loaded.has(id)) loaded.set(id, load(entry));
        const { widget, model } = await loaded.get(id);
        await widget.render({ model, el });
        el.dataset.mounted = "true";
      } catch (error) {
        console.error(error);
        el.textContent = "This animation could not start; the figure beside it shows the same run.";
      }
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", mountAll);
  else mountAll();
})();
