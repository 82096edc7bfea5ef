// What all widgets share. It is put before each widget's own code (minidist.widgets.common.code).

const SVG = "http://www.w3.org/2000/svg";

// --- elements --------------------------------------------------------------------------------

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);
const html = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);

// --- colours: one for each chunk or bucket ---------------------------------------------------

const colour = (k) => `var(--w-chunk-${k % 8})`;
const onColour = (k) => `var(--w-on-chunk-${k % 8})`;

// --- controls --------------------------------------------------------------------------------

const ICONS = {
  back: "M15 5v14l-9-7zM4 5h2v14H4z",
  play: "M6 4l14 8-14 8z",
  pause: "M6 4h4v16H6zM14 4h4v16h-4z",
  forward: "M9 5v14l9-7zM18 5h2v14h-2z",
};

function button(label, icon) {
  const node = html("button", { type: "button", class: "w-round" });
  node.append(svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path")));
  const set = (name, icon) => {
    node.setAttribute("aria-label", name);
    node.title = name;
    node.querySelector("path").setAttribute("d", ICONS[icon]);
  };
  set(label, icon);
  return [node, set];
}

function labelled(text, control) {
  return html("label", {}, html("span", {}, text), control);
}

function options(select, entries, chosen) {
  for (const [value, text] of entries) {
    const option = html("option", { value }, text);
    option.selected = String(value) === String(chosen);
    select.append(option);
  }
}

function slider(label, min, max, step) {
  const input = html("input", { type: "range", min, max, step, "aria-label": label });
  const output = html("span", { class: "w-value", "aria-hidden": "true" });
  const row = html("label", { class: "w-slider" }, html("span", {}, label), input, output);
  return { row, input, show(value, words) { input.value = value; input.setAttribute("aria-valuetext", words); output.textContent = words; } };
}

// JupyterLab hears the keyboard first and moves between cells with the same keys, except from here.
function keepKeys(root) {
  for (const own of [root, ...root.querySelectorAll("button, input, select, [tabindex]")])
    own.setAttribute("data-lm-suppress-shortcuts", "true");
}

// --- size ------------------------------------------------------------------------------------

const widthFor = (root, least) => Math.max(least, Math.min(860, Math.floor(root.clientWidth - 24) || 680));

function resize(stage, width, height) {
  stage.setAttribute("viewBox", `0 0 ${width} ${height}`);
  stage.setAttribute("width", width);
  stage.setAttribute("height", height);
}

// Calls `draw` whenever `root` has another width; what comes back ends that.
function onNewWidth(root, draw) {
  let drawn = 0;
  const observer = new ResizeObserver(() => {
    if (root.clientWidth === drawn) return;
    drawn = root.clientWidth;
    draw();
  });
  observer.observe(root);
  return () => observer.disconnect();
}

// --- numbers and words -----------------------------------------------------------------------

const digits = (value, count = 3) => String(Number(value.toPrecision(count)));

function scaled(value, units, count) {
  const [unit, name] = units.find(([unit]) => value >= 0.9995 * unit) ?? units[units.length - 1];
  const number = value / unit;
  return `${number >= 100 ? Math.round(number) : digits(number, count)}\u00a0${name}`;
}

const sizeName = (bytes, count = 3) =>
  bytes < 1024 ? `${Math.round(bytes)}\u00a0B` : scaled(bytes, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]], count);
const timeName = (seconds, count = 3) => scaled(seconds, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]], count);
const bandwidthName = (bytes) => scaled(bytes, [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]);

const list = (words, last) =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} ${last} ${words[words.length - 1]}`;

