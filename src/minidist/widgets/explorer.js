// The explorer: evaluates the closed forms that come from minidist.cost. It knows no algorithm; per
// world size each curve has its steps and the part of the tensor that a step carries.

const LOW = 2 ** 6; // bytes at the left end of the axis
const HIGH = 2 ** 30; // and at the right end
const EQUAL = 1e-9; // times that differ by less are the same
const NARROW = 520;
const MARKS = { // measured points, around 0, 0
  o: "M4.5 0a4.5 4.5 0 1 1-9 0a4.5 4.5 0 1 1 9 0z",
  s: "M-4 -4h8v8h-8z",
  D: "M0 -5.5l5.5 5.5-5.5 5.5-5.5-5.5z",
  v: "M-5 -4h10l-5 9z",
};

// --- who is the fastest where ----------------------------------------------------------------

const timeOf = ({ steps, part }, bytes, wire) => steps * (wire.alpha + (part * bytes) / wire.bandwidth);

// [{low, high, lines}] from LOW to HIGH: the lines that cost least there, several if they are equal.
function regionsOf(lines, wire) {
  const cuts = new Set([LOW, HIGH]);
  for (const a of lines)
    for (const b of lines) {
      const slope = (a.steps * a.part - b.steps * b.part) / wire.bandwidth;
      const meet = ((b.steps - a.steps) * wire.alpha) / slope;
      if (meet > LOW && meet < HIGH) cuts.add(meet);
    }
  const ends = [...cuts].sort((a, b) => a - b);
  const found = [];
  for (let i = 0; i + 1 < ends.length; i++) {
    const middle = Math.sqrt(ends[i] * ends[i + 1]);
    const least = Math.min(...lines.map((line) => timeOf(line, middle, wire)));
    const best = lines.filter((line) => timeOf(line, middle, wire) <= least * (1 + EQUAL));
    const last = found[found.length - 1];
    if (last && last.lines.length === best.length && last.lines.every((line, k) => line === best[k]))
      last.high = ends[i + 1];
    else if (best.length) found.push({ low: ends[i], high: ends[i + 1], lines: best });
  }
  return found;
}

function winnersInWords(regions, size) {
  if (!regions.length) return "Choose at least one algorithm.";
  const who = ({ lines }) => `${list(lines.map((line) => line.label), "and")}${lines.length > 1 ? " (equal)" : ""}`;
  const start = `Fastest with ${size}\u00a0ranks`;
  if (regions.length === 1) return `${start}, at every size: ${who(regions[0])}.`;
  const parts = regions.map((region, i) =>
    i < regions.length - 1 ? `${who(region)} up to ${sizeName(region.high, 2)}` : `${who(region)} above`);
  return `${start}: ${parts.join(", ")}.`;
}

// --- drawing ---------------------------------------------------------------------------------

function drawPlot(width, lines, regions, points, bytes, wire) {
  const narrow = width < NARROW;
  const box = { left: narrow ? 54 : 58, right: width - 14, top: 22, bottom: narrow ? 230 : 290 };
  const height = box.bottom + 64;
  const picture = svg("g");
  const values = lines.flatMap((line) => [timeOf(line, LOW, wire), timeOf(line, HIGH, wire)]).concat(points.map((p) => p.seconds));
  const [first, last] = values.length ? [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))] : [-6, 0];
  const span = Math.max(1, last - first);
  const x = (size) => box.left + ((box.right - box.left) * Math.log2(size / LOW)) / Math.log2(HIGH / LOW);
  const y = (seconds) => box.bottom - ((box.bottom - box.top) * (Math.log10(seconds) - first)) / span;
  const text = (attributes, words) => {
    const node = svg("text", attributes);
    node.textContent = words;
    return node;
  };

  const skip = Math.ceil(span / 8);
  for (let e = first; e <= last; e++) {
    const at = y(10 ** e);
    picture.append(svg("path", { d: `M${box.left} ${at}H${box.right}`, class: "mx-grid" }));
    if ((e - first) % skip === 0) picture.append(text({ x: box.left - 6, y: at + 4, class: "mx-tick mx-end" }, timeName(10 ** e)));
  }
  for (let k = 10; k <= 30; k += narrow ? 10 : 5) {
    picture.append(svg("path", { d: `M${x(2 ** k)} ${box.top}V${box.bottom}`, class: "mx-grid" }));
    picture.append(text({ x: x(2 ** k), y: box.bottom + 40, class: k === 30 ? "mx-tick mx-end" : "mx-tick" }, sizeName(2 ** k)));
  }
  picture.append(text({ x: (box.left + box.right) / 2, y: box.bottom + 58, class: "mx-tick" }, "bytes per rank"));

  // Who is fastest: a band under the axis, and a line where it changes.
  for (const region of regions) {
    const [from, to] = [x(region.low), x(region.high)];
    const [winner] = region.lines;
    picture.append(svg("rect", { x: from, y: box.bottom + 4, width: Math.max(0, to - from), height: 20, class: "mx-band", style: `fill:${colour(winner.colour)}` }));
    const name = region.lines.map((line) => line.label).join(" = ");
    if (to - from > 7.2 * name.length + 8)
      picture.append(text({ x: (from + to) / 2, y: box.bottom + 18.5, class: "mx-band-name", style: `fill:${onColour(winner.colour)}` }, name));
    if (region.low > LOW) {
      picture.append(svg("path", { d: `M${from} ${box.top}V${box.bottom + 24}`, class: "mx-cross" }));
      const side = from > width - 90 ? "mx-cross-name mx-end" : "mx-cross-name";
      picture.append(text({ x: from, y: box.top - 8, class: side }, sizeName(region.low, 2)));
    }
  }

  const here = x(bytes);
  picture.append(svg("path", { d: `M${here} ${box.top}V${box.bottom}`, class: "mx-here" }));
  for (const line of lines) {
    let d = "";
    for (let i = 0; i <= 96; i++) {
      const size = LOW * (HIGH / LOW) ** (i / 96);
      d += `${i ? "L" : "M"}${x(size).toFixed(1)} ${y(timeOf(line, size, wire)).toFixed(1)}`;
    }
    picture.append(svg("path", { d, class: "mx-curve", "data-name": line.name, style: `stroke:${colour(line.colour)}`, "stroke-dasharray": line.dashes.join(" ") }));
  }
  for (const line of lines)
    picture.append(svg("circle", { cx: here, cy: y(timeOf(line, bytes, wire)), r: 4, class: "mx-dot", style: `fill:${colour(line.colour)}` }));
  for (const point of points) {
    const line = lines.find(({ name }) => name === point.algorithm);
    const at = `translate(${x(Math.min(HIGH, Math.max(LOW, point.nbytes)))} ${y(point.seconds)})`;
    picture.append(svg("path", { d: MARKS[line.marker], transform: at, class: "mx-point", style: `fill:${colour(line.colour)}` }));
  }
  const sizeAt = (px) => LOW * (HIGH / LOW) ** ((px - box.left) / (box.right - box.left));
  return { picture, height, sizeAt };
}

// --- the widget ------------------------------------------------------------------------------

let made = 0; // names of checkboxes and sliders must differ between explorers on a page

function render({ model, el }) {
  made += 1;
  const stage = svg("svg", { role: "img", class: "w-stage" });
  const status = html("p", { class: "mx-text", role: "status", "aria-live": "polite" });
  const times = html("p", { class: "mx-times" });
  const measured = html("p", { class: "mx-measured" });
  const choices = html("div", { class: "mx-choices", role: "group", "aria-label": "Algorithms" });
  const alpha = slider("alpha, a message", -8, -1, 0.05);
  const bandwidth = slider("1/beta, bandwidth", 6, 13, 0.05);
  const ranks = slider("N, ranks", 0, model.get("world_sizes").length - 1, 1);
  const size = slider("T, bytes per rank", 6, 30, 1);
  const root = html("div", { class: "minidist-widget minidist-explorer", role: "group", "aria-label": `Explorer ${made}: which allreduce is the fastest` },
    choices, stage, status, times, measured,
    html("div", { class: "w-sliders" }, alpha.row, bandwidth.row, ranks.row, size.row));
  el.append(root);

  const boxes = model.get("curves").map((curve) => {
    const box = html("input", { type: "checkbox" });
    const sample = svg("svg", { width: 34, height: 12, "aria-hidden": "true" },
      svg("path", { d: "M1 6H33", class: "mx-curve", style: `stroke:${colour(curve.colour)}`, "stroke-dasharray": curve.dashes.join(" ") }));
    choices.append(html("label", {}, box, sample, html("span", {}, curve.label)));
    box.onchange = () => set("shown", boxes.filter(([, other]) => other.checked).map(([name]) => name));
    return [curve.name, box];
  });

  function set(name, value) {
    model.set(name, value);
    model.save_changes();
    draw(); // also where setting tells nobody
  }

  let plot = null;
  function draw() {
    const [worldSize, bytes, shown] = [model.get("world_size"), model.get("nbytes"), model.get("shown")];
    const wire = { alpha: model.get("alpha"), bandwidth: model.get("bandwidth") };
    const index = model.get("world_sizes").indexOf(worldSize);
    const lines = model.get("curves").filter(({ name }) => shown.includes(name))
      .map((curve) => ({ ...curve, steps: curve.forms[index][0], part: curve.forms[index][1] }));
    const regions = regionsOf(lines, wire);
    const all = model.get("points").filter(({ algorithm }) => shown.includes(algorithm));
    const points = all.filter((point) => point.world_size === worldSize);

    const width = widthFor(root, 260);
    plot = drawPlot(width, lines, regions, points, bytes, wire);
    resize(stage, width, plot.height);
    const title = svg("title");
    title.textContent = `Time against size for ${list(lines.map((line) => line.label), "and") || "no algorithm"} on ${worldSize} ranks`;
    const description = svg("desc");
    description.textContent = [2 ** 10, 2 ** 20, 2 ** 30].map((at) =>
      `${sizeName(at)}: ${lines.map((line) => `${line.label} ${timeName(timeOf(line, at, wire))}`).join(", ")}.`).join(" ");
    stage.replaceChildren(title, description, plot.picture);

    const words = winnersInWords(regions, worldSize);
    if (status.textContent !== words) status.textContent = words;
    const ranked = [...lines].sort((a, b) => timeOf(a, bytes, wire) - timeOf(b, bytes, wire));
    times.textContent = ranked.length
      ? `At ${sizeName(bytes)}: ${ranked.map((line) => `${line.label}\u00a0${timeName(timeOf(line, bytes, wire))}`).join(", ")}.` : "";
    const elsewhere = [...new Set(all.map((point) => point.world_size))].sort((a, b) => a - b);
    const wires = [...new Set(points.map(({ transport }) => transport.replace("_", " ")).filter(Boolean))];
    measured.hidden = !all.length;
    measured.textContent = points.length
      ? `Marks: ${points.length} measured ${points.length > 1 ? "times" : "time"}${wires.length ? ` on ${list(wires, "and")}` : ""}.`
      : `Measured with ${list(elsewhere.map(String), "and")} ranks, not with ${worldSize}.`;

    alpha.show(Math.log10(wire.alpha), timeName(wire.alpha));
    bandwidth.show(Math.log10(wire.bandwidth), bandwidthName(wire.bandwidth));
    ranks.show(index, String(worldSize));
    ranks.input.setAttribute("aria-valuetext", `${worldSize} ranks`);
    size.show(Math.log2(bytes), sizeName(bytes));
    for (const [name, box] of boxes) box.checked = shown.includes(name);
    root.dataset.regions = JSON.stringify(regions.map(({ low, high, lines }) => [low, high, ...lines.map(({ name }) => name)]));
  }

  alpha.input.oninput = () => set("alpha", Number((10 ** Number(alpha.input.value)).toPrecision(3)));
  bandwidth.input.oninput = () => set("bandwidth", Number((10 ** Number(bandwidth.input.value)).toPrecision(3)));
  ranks.input.oninput = () => set("world_size", model.get("world_sizes")[Number(ranks.input.value)]);
  size.input.oninput = () => set("nbytes", 2 ** Number(size.input.value));
  stage.onclick = (event) => {
    const { left, width } = stage.getBoundingClientRect();
    const at = plot.sizeAt(((event.clientX - left) * stage.viewBox.baseVal.width) / width);
    set("nbytes", 2 ** Math.min(30, Math.max(6, Math.round(Math.log2(at)))));
  };
  keepKeys(root);
  root.onkeydown = (event) => event.stopPropagation(); // a notebook has uses of its own for arrows

  const traits = ["curves", "world_sizes", "shown", "alpha", "bandwidth", "world_size", "nbytes", "points"];
  for (const name of traits) model.on(`change:${name}`, draw);
  draw();
  const stopFollowing = onNewWidth(root, draw);
  return () => {
    stopFollowing();
    for (const name of traits) model.off(`change:${name}`, draw);
  };
}

export default { render };
