// The timeline: draws recorded training steps (see Run.to_dict in timeline.py), or the step that an
// alpha-beta model expects. The model is that of minidist.overlap.predict and best_cap.

const NARROW = 560;
const PLAY_MS = 9000; // a whole step at speed 1
const REST_MS = 450; // from event to event where nothing may move
const ALPHAS = [-7, -1]; // powers of ten: the ends of the sliders
const BANDWIDTHS = [6, 13];
const LAYERS = [-6, 0];
const MIB = 2 ** 20;
const EVENTS = ["forward", "backward", "ready", "launch", "wait", "done", "finalize"]; // order of equal times

// --- the model -------------------------------------------------------------------------------

// [[first layer, last layer + 1, bytes, launched, done], ...]; `ends` says when each layer ends.
function reduced(layers, ends, wire, cap) {
  const buckets = [];
  let [start, bytes, free] = [0, 0, 0];
  layers.forEach(([, , size], i) => {
    bytes += size;
    if (bytes < cap && i + 1 < layers.length) return;
    const [steps, part] = wire.form;
    free = Math.max(free, ends[i]) + steps * (wire.alpha + (part * bytes) / wire.bandwidth);
    buckets.push([start, i + 1, bytes, ends[i], free]);
    [start, bytes] = [i + 1, 0];
  });
  return buckets;
}

// A step as it is recorded, from the model; all ranks are alike.
function predicted(layers, forward, wire, cap) {
  let at = forward;
  const ends = layers.map(([, seconds]) => (at += seconds));
  const buckets = reduced(layers, ends, wire, cap);
  const ready = buckets.flatMap(([first, end], k) => layers.slice(first, end).map((_, i) => [first + i, k, ends[first + i]]));
  return {
    ranks: [{
      forward: 0, backward: forward, ready, buckets: buckets.map(([, , bytes, launch, done], k) => [k, bytes, launch, done]),
      wait: at, finalize: Math.max(at, ...buckets.map(([, , , , done]) => done)),
    }],
  };
}

// The time of a step for any cap, and the cap with which it is shortest; of equals the largest.
function curve(layers, forward, wire) {
  let at = forward;
  const ends = layers.map(([, seconds]) => (at += seconds));
  const seconds = (cap) => Math.max(at, reduced(layers, ends, wire, cap).at(-1)[4]);
  const caps = new Set();
  layers.forEach((_, i) => {
    let bytes = 0;
    for (const [, , size] of layers.slice(i)) caps.add((bytes += size));
  });
  let best = null;
  for (const cap of [...caps].sort((a, b) => b - a)) {
    const time = reduced(layers, ends, wire, cap).at(-1)[4];
    if (!best || time < best.time) best = { cap, time };
  }
  return { seconds, best: best.cap };
}

// --- a step ----------------------------------------------------------------------------------

const lastReady = (view) => (view.ready.length ? view.ready.at(-1)[2] : Math.min(view.finalize, ...view.buckets.map((b) => b[2])));
const endOf = (step) => Math.max(...step.ranks.map((view) => view.finalize));
const secondsOf = (step) => Math.max(...step.ranks.map((view) => view.finalize - view.forward));

// Seconds in which something was on its way, and the part of it while backward still computed.
function communication(view) {
  const length = (spans) => {
    let [total, until] = [0, -Infinity];
    for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
      total += Math.max(0, to - Math.max(from, until));
      until = Math.max(until, to);
    }
    return total;
  };
  const end = lastReady(view);
  return { total: length(view.buckets.map((b) => [b[2], b[3]])), hidden: length(view.buckets.map((b) => [b[2], Math.min(b[3], end)])) };
}

function hiddenShare(step) {
  const all = step.ranks.map(communication);
  const total = all.reduce((sum, { total }) => sum + total, 0);
  return total ? all.reduce((sum, { hidden }) => sum + hidden, 0) / total : 0;
}

// Everything that happens, in the order of time: {at, rank, kind, i}.
function eventsOf(step) {
  const events = step.ranks.flatMap((view, rank) => [
    { at: view.forward, rank, kind: "forward" },
    { at: view.backward, rank, kind: "backward" },
    ...view.ready.map(([, , at], i) => ({ at, rank, kind: "ready", i })),
    ...view.buckets.flatMap(([, , launch, done], i) => [{ at: launch, rank, kind: "launch", i }, { at: done, rank, kind: "done", i }]),
    { at: view.wait, rank, kind: "wait" },
    { at: view.finalize, rank, kind: "finalize" },
  ]);
  return events.sort((a, b) => a.at - b.at || EVENTS.indexOf(a.kind) - EVENTS.indexOf(b.kind) || a.rank - b.rank);
}

// Rows for spans that overlap by more than `slack`: the first row that is free.
function rowsFor(spans, slack) {
  const free = [];
  const rows = spans.map(([from, to]) => {
    let row = free.findIndex((until) => until <= from + slack);
    if (row < 0) row = free.length;
    free[row] = to;
    return row;
  });
  return { rows, count: Math.max(1, free.length) };
}

// --- the lanes -------------------------------------------------------------------------------

const words = (attributes, text) => svg("text", attributes, text);
const box = (x, y, width, height, more) => svg("rect", { x, y, width: Math.max(0, width), height, ...more });

// Draws all ranks; `items` are what can be pointed at: {rank, lane, from, to, y, height, ...}.
function drawLanes(step, width, one) {
  const narrow = width < NARROW;
  const left = narrow ? 68 : 78;
  const right = width - 10;
  const end = endOf(step);
  const x = (at) => left + ((right - left) * at) / end;
  const picture = svg("g");
  const items = [];
  let y = 2;
  const name = (lane, y, height) => picture.append(words({ x: left - 8, y: y + height / 2 + 4, class: "mt-lane" }, lane));
  const grid = svg("g");
  picture.append(grid);
  step.ranks.forEach((view, rank) => {
    const top = y;
    picture.append(words({ x: 2, y: y + 12, class: "mt-rank" }, one.alike ? "any rank" : `rank ${rank}`));
    y += 18;
    const add = (item) => items.push({ rank, ...item });

    // Computing: forward, then for each gradient the time that led to it, then waiting.
    name("compute", y, 20);
    picture.append(box(x(view.forward), y, x(view.backward) - x(view.forward), 20, { class: "mt-forward" }));
    if (x(view.backward) - x(view.forward) > 50) picture.append(words({ x: (x(view.forward) + x(view.backward)) / 2, y: y + 14, class: "mt-word" }, "forward"));
    add({ kind: "forward", y, height: 20, from: view.forward, to: view.backward });
    const begins = [];
    view.ready.forEach(([, bucket, at], i) => {
      begins[i] = i ? view.ready[i - 1][2] : view.backward;
      picture.append(box(x(begins[i]), y, x(at) - x(begins[i]), 20, { class: "mt-layer", style: `--c:${colour(bucket)}` }));
      add({ kind: "layer", i, y, height: 20, from: begins[i], to: at });
    });
    if (view.finalize > view.wait) {
      picture.append(box(x(view.wait), y + 0.5, x(view.finalize) - x(view.wait) - 0.5, 19, { class: "mt-wait" }));
      if (x(view.finalize) - x(view.wait) > 44) picture.append(words({ x: (x(view.wait) + x(view.finalize)) / 2, y: y + 14, class: "mt-word" }, "waits"));
      add({ kind: "wait", y, height: 20, from: view.wait, to: view.finalize });
    }
    y += 24;

    name("hooks", y, 14);
    picture.append(svg("path", { d: `M${left} ${y + 14}H${right}`, class: "mt-base" }));
    view.ready.forEach(([, bucket, at], i) => {
      picture.append(box(x(at) - 1, y, 2, 14, { style: `fill:${colour(bucket)}` }));
      add({ kind: "ready", i, y, height: 14, from: at, to: at });
    });
    y += 19;

    // Filling: a stair from a bucket's first gradient to its launch.
    name("buckets", y, 30);
    picture.append(svg("path", { d: `M${left} ${y + 30}H${right}`, class: "mt-base" }));
    const fills = view.buckets.map(([k, bytes, launch]) => {
      const mine = view.ready.map((ready, i) => ({ ready, i })).filter(({ ready }) => ready[1] === k);
      return { k, bytes, launch, mine, from: mine.length ? begins[mine[0].i] : launch };
    });
    const filling = rowsFor(fills.map(({ from, launch }) => [from, launch]), end / 100);
    fills.forEach(({ k, bytes, launch, mine, from }, i) => {
      const tall = 30 / filling.count;
      const floor = y + tall * (filling.rows[i] + 1);
      const to = Math.max(x(launch), x(from) + 4);
      picture.append(box(x(from) + 0.5, floor - tall + 0.5, Math.max(1, to - x(from) - 1), tall - 1, { class: "mt-room", style: `--c:${colour(k)}` }));
      let [d, sum] = [`M${x(from)} ${floor}`, 0];
      for (const { ready } of mine) {
        d += `H${Math.min(x(ready[2]), to - 4)}`;
        sum += one.bytes(ready[0]);
        d += `V${floor - tall * Math.min(1, sum / bytes)}`;
      }
      if (!mine.length) d += `V${floor - tall}`;
      picture.append(svg("path", { d: `${d}H${to}V${floor}Z`, style: `fill:${colour(k)}` }));
      add({ kind: "fill", i, y: floor - tall, height: tall, from, to: launch });
    });
    y += 35;

    const flying = rowsFor(view.buckets.map(([, , launch, done]) => [launch, done]), end / 1000);
    const tall = Math.max(5, Math.min(17, 68 / flying.count));
    name("all-reduce", y, Math.min(17, tall * flying.count));
    view.buckets.forEach(([k, , launch, done], i) => {
      const at = y + tall * flying.rows[i];
      const wide = Math.max(2, x(done) - x(launch));
      picture.append(box(x(launch), at, wide, tall - 1, { rx: Math.min(3, wide / 2), class: "mt-flight", style: `fill:${colour(k)}` }));
      if (tall > 12 && wide > 10 + 7 * String(k).length) picture.append(words({ x: x(launch) + wide / 2, y: at + tall / 2 + 4, class: "mt-number", style: `fill:${onColour(k)}` }, k));
      add({ kind: "flight", i, y: at, height: tall - 1, from: launch, to: done });
    });
    y += tall * flying.count + 12;
    for (const item of items) if (item.rank === rank) item.top = top;
  });

  const unit = niceUnit(end, narrow ? 4 : 8);
  for (let at = 0; at <= end * 1.0001; at += unit) {
    grid.append(svg("path", { d: `M${x(at)} 20V${y - 6}`, class: "mt-grid" }));
    const last = x(at) > right - 24;
    picture.append(words({ x: last ? right + 8 : x(at), y: y + 8, class: last ? "mt-tick w-end" : "mt-tick" }, at ? timeName(at) : "0"));
  }
  return { picture, items, x, left, right, bottom: y - 6, height: y + 14, at: (px) => (end * (px - left)) / (right - left) };
}

function niceUnit(end, count) {
  const rough = end / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((m) => m * power >= rough);
}

// --- the buckets at one moment ---------------------------------------------------------------

// Per bucket: how much of it is filled, and "fills", "waits", "travels" or "done".
function bucketsAt(view, at, bytesOf) {
  return view.buckets.map(([k, bytes, launch, done]) => {
    const filled = view.ready.filter((r) => r[1] === k && r[2] <= at).reduce((sum, r) => sum + bytesOf(r[0]), 0);
    const state = done <= at ? "done" : launch <= at ? "travels" : filled >= bytes ? "waits" : "fills";
    return { k, bytes, share: launch <= at ? 1 : filled / bytes, state };
  });
}

function drawBuckets(step, at, width, one) {
  const left = width < NARROW ? 68 : 78;
  const picture = svg("g");
  let y = 2;
  step.ranks.forEach((view, rank) => {
    const buckets = bucketsAt(view, at, one.bytes);
    const pitch = Math.min(58, (width - left - 10) / buckets.length);
    const wide = Math.max(2, pitch - (pitch > 12 ? 6 : 1));
    picture.append(words({ x: 2, y: y + 21, class: "mt-rank" }, one.alike ? "any rank" : `rank ${rank}`));
    buckets.forEach(({ k, share, state }, i) => {
      const x = left + i * pitch;
      const group = svg("g", { class: `mt-bucket mt-${state}`, style: `--c:${colour(k)}` });
      group.append(box(x, y, wide, 32, { rx: Math.min(4, wide / 4), class: "mt-tub" }));
      if (share > 0) group.append(box(x, y + 32 * (1 - share), wide, 32 * share, { rx: Math.min(4, wide / 4), class: "mt-level" }));
      const solid = state === "travels" || state === "done";
      if (wide > 16) group.append(words({ x: x + wide / 2, y: y + 21, class: "mt-number", style: solid ? `fill:${onColour(k)}` : "" }, k));
      if (wide > 42) {
        const state_ = { fills: share > 0 ? `${Math.round(100 * share)}\u00a0%` : "empty", waits: "full", travels: "on its way", done: "averaged" }[state];
        group.append(words({ x: x + wide / 2, y: y + 44, class: "mt-state" }, state_));
      } else if (state === "done" && wide > 9) group.append(svg("path", { d: `M${x + wide / 2 - 4} ${y + 39}l3 3 6-6`, class: "mt-check" }));
      picture.append(group);
    });
    y += 52;
  });
  return { picture, height: y };
}

// --- step time over cap ----------------------------------------------------------------------

// The caps worth a look: from well below the smallest recorded one to one bucket for all.
function capsOf(model, points) {
  const total = model.layers.reduce((sum, layer) => sum + layer[2], 0);
  const caps = points.map((point) => point.cap);
  return [Math.max(1, Math.min(total / 64, model.best, ...caps.map((cap) => cap / 2)) / 1.3), 1.4 * Math.max(total, ...caps)];
}

function drawCurve(width, model, points, chosen, mode) {
  const narrow = width < NARROW;
  const area = { left: narrow ? 52 : 64, right: width - 14, top: 24, bottom: 176 };
  const [low, high] = capsOf(model, points);
  const samples = [...Array(241).keys()].map((i) => low * (high / low) ** (i / 240));
  samples.push(model.best, model.best * 1.0005);
  const line = samples.sort((a, b) => a - b).map((cap) => [cap, model.seconds(cap)]);
  const least = Math.min(...line.map(([, s]) => s), ...points.map((p) => p.low));
  const most = Math.min(Math.max(...line.map(([, s]) => s), ...points.map((p) => p.high)), Math.max(3 * least, ...points.map((p) => p.seconds)));
  const floor = Math.max(0, least - 0.12 * (most - least || least));
  const roof = most + 0.06 * (most - least || least);
  const x = (cap) => area.left + ((area.right - area.left) * Math.log(Math.min(high, Math.max(low, cap)) / low)) / Math.log(high / low);
  const y = (seconds) => area.bottom - ((area.bottom - area.top) * (Math.min(roof, seconds) - floor)) / (roof - floor);
  const picture = svg("g");

  const unit = niceUnit(roof - floor, 5);
  for (let at = Math.ceil(floor / unit) * unit; at <= roof; at += unit) {
    picture.append(svg("path", { d: `M${area.left} ${y(at)}H${area.right}`, class: "mt-grid" }));
    picture.append(words({ x: area.left - 6, y: y(at) + 4, class: "mt-tick w-end" }, timeName(at)));
  }
  const jump = Math.max(1, Math.ceil(Math.log2(high / low) / (narrow ? 4 : 8)));
  for (let k = Math.ceil(Math.log2(low)); 2 ** k <= high; k++) {
    if (k % jump) continue;
    picture.append(svg("path", { d: `M${x(2 ** k)} ${area.top}V${area.bottom}`, class: "mt-grid" }));
    picture.append(words({ x: x(2 ** k), y: area.bottom + 17, class: x(2 ** k) > width - 40 ? "mt-tick w-end" : "mt-tick" }, sizeName(2 ** k)));
  }
  picture.append(words({ x: (area.left + area.right) / 2, y: area.bottom + 35, class: "mt-tick" }, "bucket cap"));
  const best = x(model.best);
  picture.append(svg("path", { d: `M${best} ${area.top}V${area.bottom}`, class: "mt-best" }));
  const side = best > width - 90 ? " w-end" : best < area.left + 80 ? " mt-start" : "";
  picture.append(words({ x: best, y: area.top - 8, class: `mt-best-name${side}` }, `model’s best ${sizeName(model.best)}`));
  if (chosen) picture.append(svg("path", { d: `M${x(chosen)} ${area.top}V${area.bottom}`, class: "mt-here" }));
  picture.append(svg("path", { d: `M${area.left} ${y(line[0][1])}${line.map(([cap, s]) => `V${y(s).toFixed(1)}H${x(cap).toFixed(1)}`).join("")}`, class: "mt-curve" }));
  picture.append(svg("circle", { cx: best, cy: y(model.seconds(model.best)), r: 4.5, class: "mt-dot" }));
  const first = points.reduce((a, b) => (b.seconds < a.seconds ? b : a), points[0]);
  for (const point of points) {
    const at = x(point.cap);
    picture.append(svg("path", { d: `M${at} ${y(point.low)}V${y(point.high)}`, class: "mt-whisker" }));
    picture.append(svg("path", { d: "M0 -6l6 6-6 6-6-6z", transform: `translate(${at} ${y(point.seconds)})`, class: point === first ? "mt-point mt-first" : "mt-point" }));
  }
  if (mode === "model" && chosen) picture.append(svg("circle", { cx: x(chosen), cy: y(model.seconds(chosen)), r: 5.5, class: "mt-now" }));
  return { picture, height: area.bottom + 42, capAt: (px) => low * (high / low) ** ((px - area.left) / (area.right - area.left)) };
}

// --- the widget ------------------------------------------------------------------------------

let made = 0; // names of radio buttons must differ between timelines on a page

function radios(name, label) {
  const group = html("div", { class: "mt-radios", role: "radiogroup", "aria-label": label });
  return {
    group,
    fill(entries, chosen, choose) {
      group.replaceChildren(...entries.map(([value, text]) => {
        const input = html("input", { type: "radio", name, value });
        input.onchange = () => choose(value);
        return html("label", {}, input, html("span", {}, text));
      }));
      this.show(chosen);
    },
    show(chosen) { for (const input of group.querySelectorAll("input")) input.checked = input.value === String(chosen); },
  };
}

function render({ model, el }) {
  made += 1;
  const reduced_ = window.matchMedia("(prefers-reduced-motion: reduce)");
  const get = (name) => model.get(name);
  let step, events, lanes, run, expected;
  let playing = false;
  let [request, timer, last] = [0, 0, 0];
  let pointed = null;

  const modes = radios(`minidist-timeline-mode-${made}`, "What is shown");
  const caps = radios(`minidist-timeline-cap-${made}`, "Bucket cap");
  const which = html("select", { "aria-label": "Step" });
  const speed = html("select", { "aria-label": "Speed" });
  options(speed, [["0.4", "slow"], ["1", "normal"], ["2.5", "fast"]], "1");
  const capsRow = html("div", { class: "mt-row" }, html("span", { "aria-hidden": "true" }, "Bucket cap"), caps.group);
  const whichLabel = labelled("Step", which);
  const headline = html("p", { class: "mt-headline" });
  const stage = svg("svg", { role: "img", class: "w-stage mt-lanes" });
  const tip = html("div", { class: "mt-tip", hidden: "", "aria-hidden": "true" });
  const status = html("p", { class: "mt-text", role: "status", "aria-live": "polite" });
  const tubs = svg("svg", { class: "w-stage mt-tubs", role: "img" });
  const [back] = button("Event back", "back");
  const [play, setPlay] = button("Play", "play");
  const [forward] = button("Event forward", "forward");
  play.classList.add("w-main");
  const range = html("input", { type: "range", min: "0", max: "1000", step: "any", "aria-label": "Time" });
  const count = html("span", { class: "w-count", "aria-hidden": "true" });
  const layerTime = slider("time per layer", ...LAYERS, 0.02);
  const alpha = slider("alpha, a message", ...ALPHAS, 0.02);
  const bandwidth = slider("1/beta, bandwidth", ...BANDWIDTHS, 0.02);
  const cap = slider("bucket cap", 0, 1, 0.05);
  const sliders = html("div", { class: "w-sliders" }, cap.row, layerTime.row, alpha.row, bandwidth.row);
  const chart = svg("svg", { role: "img", class: "w-stage mt-chart" });
  const verdict = html("p", { class: "mt-verdict" });
  const legend = html("p", { class: "mt-legend" });
  const root = html("div", { class: "minidist-widget minidist-timeline", role: "group", tabindex: "0", "aria-label": `Timeline ${made} of a training step` },
    html("div", { class: "mt-top" }, modes.group, html("div", { class: "mt-more" }, whichLabel, labelled("Speed", speed))),
    capsRow, sliders, headline,
    html("div", { class: "mt-stage" }, stage, tip), status,
    html("div", { class: "w-controls" }, html("div", { class: "w-buttons" }, back, play, forward), range, count),
    tubs,
    html("div", { class: "mt-compare" }, html("p", { class: "mt-title" }, "Step time for each bucket cap"), chart, verdict, legend));
  el.append(root);

  let at = get("at"); // as the trait: -1 is the end
  let quiet = false; // while the changes are our own

  function set(values) {
    quiet = true;
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    quiet = false;
    model.save_changes();
  }

  function change(values) { // what is shown, so it stands at its end again
    at = -1;
    set({ ...values, at });
    draw();
  }

  const inModel = () => get("mode") === "model";
  const one = { // how the drawing reads a step
    bytes: (i) => (inModel() ? get("layers")[i][2] : run.parameters[i][1]),
    name: (i) => (inModel() ? get("layers")[i][0] : run.parameters[i][0]),
  };

  // --- what is shown

  function expect() {
    const mean = get("layers").reduce((sum, layer) => sum + layer[1], 0) / get("layers").length;
    const layers = get("layers").map(([name, seconds, bytes]) => [name, (seconds * get("layer_seconds")) / mean, bytes]);
    const wire = { form: get("form"), alpha: get("alpha"), bandwidth: get("bandwidth") };
    expected = { layers, wire, ...curve(layers, get("forward"), wire) };
  }

  function choose() {
    run = get("runs")[get("run")] ?? get("runs")[0];
    one.alike = inModel();
    step = inModel() ? predicted(expected.layers, get("forward"), expected.wire, get("cap")) : run.steps[get("step")] ?? run.steps[run.typical];
    events = eventsOf(step);
  }

  const now = () => (at < 0 ? endOf(step) : Math.min(at, endOf(step)));

  function inWords({ kind, rank, i }) {
    const who = inModel() ? "" : ` on rank\u00a0${rank}`;
    const view = step.ranks[rank];
    if (kind === "forward") return `the forward begins${who}`;
    if (kind === "backward") return `backward begins${who}`;
    if (kind === "wait") return `backward is over${who}: what is not averaged yet is waited for`;
    if (kind === "finalize") return `all gradients are averaged and in place${who}`;
    if (kind === "ready") {
      const [parameter, k] = view.ready[i];
      return `${one.name(parameter)} is ready${who}: ${sizeName(one.bytes(parameter))} into bucket\u00a0${k}`;
    }
    const [k, bytes] = view.buckets[i];
    if (kind === "launch") return `bucket\u00a0${k} is full${who}, its all-reduce of ${sizeName(bytes)} begins`;
    return `bucket\u00a0${k} is averaged${who}`;
  }

  function itemInWords(item) {
    const view = step.ranks[item.rank];
    const who = inModel() ? "" : `rank\u00a0${item.rank}, `;
    const span = `${who}${timeName(item.from)} to ${timeName(item.to)}`;
    if (item.kind === "forward") return ["forward", span];
    if (item.kind === "wait") return ["waits for the last all-reduces", span];
    if (item.kind === "layer" || item.kind === "ready") {
      const [parameter, k] = view.ready[item.i];
      const when = item.kind === "ready" ? `${who}ready at ${timeName(item.to)}` : `${span}: its gradient is computed`;
      return [one.name(parameter), `${sizeName(one.bytes(parameter))}, bucket\u00a0${k}`, when];
    }
    const [k, bytes] = view.buckets[item.i];
    const inside = view.ready.filter((r) => r[1] === k).length;
    const what = `${sizeName(bytes)}, ${inside} gradient${inside === 1 ? "" : "s"}`;
    return item.kind === "fill" ? [`bucket\u00a0${k} fills`, what, span] : [`all-reduce of bucket\u00a0${k}`, what, `${span}: ${timeName(item.to - item.from)}`];
  }

  // --- drawing

  const shade = svg("rect", { class: "mt-later" });
  const cursor = svg("path", { class: "mt-cursor" });
  const glow = svg("rect", { class: "mt-glow", rx: 2 });

  function draw() {
    expect();
    choose();
    modes.show(get("mode"));
    caps.show(get("run"));
    capsRow.hidden = inModel() || get("runs").length < 2;
    whichLabel.hidden = inModel() || run.steps.length < 2;
    sliders.hidden = !inModel();
    which.replaceChildren();
    options(which, run.steps.map(({ number }, i) => [i, `${number}${number === 0 ? " (first)" : i === run.typical ? " (typical)" : ""}`]), get("step"));

    const width = widthFor(root, 260);
    lanes = drawLanes(step, width, one);
    resize(stage, width, lanes.height);
    const title = svg("title", {}, inModel() ? "The step that the model expects, lane by lane" : `Recorded step ${get("runs").length > 1 ? `with a cap of ${run.label}` : ""}, lane by lane`);
    const description = svg("desc", {}, step.ranks.map((view, rank) =>
      `${inModel() ? "Any rank" : `Rank ${rank}`}: forward until ${timeName(view.backward)}, backward until ${timeName(lastReady(view))}, averaged at ${timeName(view.finalize)}; ${view.buckets.map(([k, bytes, launch, done]) => `bucket ${k}, ${sizeName(bytes)}, on its way from ${timeName(launch)} to ${timeName(done)}`).join("; ")}.`).join(" "));
    stage.replaceChildren(title, description, lanes.picture, shade, cursor, glow);

    const count = step.ranks[0].buckets.length;
    const share = Math.round(100 * hiddenShare(step));
    const capText = inModel() ? `a cap of ${sizeName(get("cap"))}` : run.cap === null ? "the default caps" : `a cap of ${run.label}`;
    headline.textContent = `${inModel() ? "Expected" : "Recorded"} with ${capText}: ${count} bucket${count > 1 ? "s" : ""}, ${timeName(secondsOf(step))}; ${share}\u00a0% of the communication is hidden behind backward.`;
    root.dataset.hidden = hiddenShare(step);
    root.dataset.seconds = secondsOf(step);
    drawChart(width);
    show();
  }

  let plot = null;
  function drawChart(width) {
    const points = get("runs").map((run, i) => ({ ...run, i })).filter((run) => run.cap !== null);
    const chosen = inModel() ? get("cap") : run.cap;
    plot = drawCurve(width, expected, points, chosen, get("mode"));
    resize(chart, width, plot.height);
    const first = points.reduce((a, b) => (b.seconds < a.seconds ? b : a), points[0]);
    const model_ = `best by the model: ${sizeName(expected.best)}, ${timeName(expected.seconds(expected.best))}`;
    verdict.textContent = first && points.length > 1
      ? `Fastest recorded: ${first.label}, ${timeName(first.seconds)}; ${model_}.` : `${model_[0].toUpperCase()}${model_.slice(1)}.`;
    legend.textContent = `Line: the model, with ${timeName(get("alpha"))} per message, ${bandwidthName(get("bandwidth"))} and ${timeName(get("layer_seconds"))} per layer.${points.length ? " Diamonds: recorded medians; their lines hold the middle half of the steps." : ""}`;
    const said = points.map((p) => `${p.label} ${timeName(p.seconds)}, by the model ${timeName(expected.seconds(p.cap))}`).join("; ");
    chart.replaceChildren(svg("title", {}, "Step time over bucket cap"), svg("desc", {}, `${verdict.textContent} ${said ? `Recorded: ${said}.` : ""}`), plot.picture);
    root.dataset.best = expected.best;
    root.dataset.fastest = first ? first.cap : "";

    const [low, high] = capsOf(expected, points).map(Math.log2);
    cap.input.min = Math.floor(low);
    cap.input.max = Math.ceil(high);
    cap.show(Math.log2(get("cap")), sizeName(get("cap")));
    layerTime.show(Math.log10(get("layer_seconds")), timeName(get("layer_seconds")));
    alpha.show(Math.log10(get("alpha")), timeName(get("alpha")));
    bandwidth.show(Math.log10(get("bandwidth")), bandwidthName(get("bandwidth")));
  }

  // What depends on the moment only.
  function show() {
    const [here, end] = [now(), endOf(step)];
    const px = lanes.x(here);
    for (const [name, value] of Object.entries({ x: px, y: 18, width: Math.max(0, lanes.right - px + 2), height: lanes.bottom - 18 })) shade.setAttribute(name, value);
    cursor.setAttribute("d", `M${px} 16V${lanes.bottom}`);
    range.value = (1000 * here) / end;
    const [small, unit] = end >= 1 ? [1, "s"] : end >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    count.textContent = `${digits(here * small)} / ${digits(end * small)}\u00a0${unit}`;
    const passed = events.filter((event) => event.at <= here + 1e-12);
    const event = passed.at(-1);
    const text = event ? `${timeName(event.at)}: ${inWords(event)}.` : "Before the step.";
    range.setAttribute("aria-valuetext", `${timeName(here)} of ${timeName(end)}`);
    status.setAttribute("aria-live", playing && !reduced_.matches ? "off" : "polite");
    if (status.textContent !== text) status.textContent = text;
    root.dataset.event = passed.length - 1;
    root.dataset.events = events.length;
    back.disabled = here <= 0;
    forward.disabled = here >= end;
    const kinds = { forward: "forward", ready: "ready", launch: "flight", done: "flight", wait: "wait", finalize: "wait" };
    lightUp(pointed ?? (here < end && event && lanes.items.find((item) => item.rank === event.rank && item.kind === kinds[event.kind] && item.i === event.i)));

    const width = widthFor(root, 260);
    const drawn = drawBuckets(step, here, width, one);
    resize(tubs, width, drawn.height);
    tubs.replaceChildren(svg("title", {}, `The buckets at ${timeName(here)}`), svg("desc", {}, step.ranks.map((view, rank) =>
      `${inModel() ? "Any rank" : `Rank ${rank}`}: ${bucketsAt(view, here, one.bytes).map(({ k, share, state }) => `bucket ${k} ${{ fills: `${Math.round(100 * share)} percent full`, waits: "full, waits for its turn", travels: "on its way", done: "averaged" }[state]}`).join(", ")}.`).join(" ")), drawn.picture);
  }

  function lightUp(item) {
    glow.style.display = item ? "" : "none";
    if (!item) return;
    const wide = Math.max(4, lanes.x(item.to) - lanes.x(item.from));
    const x = item.from === item.to ? lanes.x(item.from) - 2 : lanes.x(item.from);
    for (const [name, value] of Object.entries({ x: x - 1.5, y: item.y - 1.5, width: wide + 3, height: item.height + 3 })) glow.setAttribute(name, value);
  }

  // --- moving

  function go(to) {
    at = to >= endOf(step) ? -1 : Math.max(0, to);
    if (!playing) set({ at }); // a kernel need not hear of every frame
    show();
  }

  function halt() {
    if (playing) set({ at });
    playing = false;
    cancelAnimationFrame(request);
    clearTimeout(timer);
    setPlay("Play", "play");
  }

  function tick(time) {
    if (!playing) return;
    if (!root.isConnected) return halt();
    const end = endOf(step);
    const passed = Math.min(100, time - last) / PLAY_MS; // a hidden page must not jump
    last = time;
    const to = now() + end * passed * Number(speed.value);
    at = to >= end ? -1 : to;
    if (at < 0) halt(); // before it is drawn: the last event is read aloud
    show();
    if (playing) request = requestAnimationFrame(tick);
  }

  function hop() {
    if (!root.isConnected) return halt();
    if (now() >= endOf(step)) return halt();
    next(1);
    timer = setTimeout(hop, REST_MS / Number(speed.value));
  }

  function toggle() {
    if (playing) { halt(); return show(); }
    if (now() >= endOf(step)) go(0);
    playing = true;
    pointed = null;
    setPlay("Pause", "pause");
    last = performance.now();
    if (reduced_.matches) hop();
    else request = requestAnimationFrame(tick);
  }

  // To the event before or after; of some at the same moment, all at once.
  function next(way) {
    const here = now();
    const times = events.map((event) => event.at);
    const to = way > 0 ? times.find((time) => time > here + 1e-9) : times.findLast((time) => time < here - 1e-9);
    go(to ?? (way > 0 ? endOf(step) : 0));
  }

  function byHand(move) {
    halt();
    pointed = null;
    tip.hidden = true;
    move();
  }

  back.onclick = () => byHand(() => next(-1));
  forward.onclick = () => byHand(() => next(1));
  play.onclick = toggle;
  range.oninput = () => byHand(() => go((Number(range.value) * endOf(step)) / 1000));
  which.onchange = () => byHand(() => change({ step: Number(which.value) }));
  const chooseRun = (i) => byHand(() => change({ run: i, step: get("runs")[i].typical }));
  modes.fill([["recorded", get("runs").length > 1 ? "Recorded runs" : "Recorded run"], ["model", "Model"]], get("mode"), (mode) => byHand(() => change({ mode })));
  const fillCaps = () => caps.fill(get("runs").map((run, i) => [i, run.label]), get("run"), chooseRun);
  const slide = (control, name) => {
    control.input.oninput = () => byHand(() => change({ [name]: Number((10 ** Number(control.input.value)).toPrecision(3)) }));
  };
  slide(layerTime, "layer_seconds");
  slide(alpha, "alpha");
  slide(bandwidth, "bandwidth");
  cap.input.oninput = () => byHand(() => change({ cap: Math.round(2 ** Number(cap.input.value)) }));

  const pixel = (event, picture) => {
    const { left, top, width } = picture.getBoundingClientRect();
    const scale = picture.viewBox.baseVal.width / width;
    return [(event.clientX - left) * scale, (event.clientY - top) * scale];
  };
  let dragging = false;
  stage.onpointerdown = (event) => {
    const [px] = pixel(event, stage);
    if (px < lanes.left - 6) return;
    dragging = event.pointerType === "mouse";
    if (dragging) stage.setPointerCapture(event.pointerId);
    byHand(() => go(lanes.at(px)));
    point(event);
  };
  stage.onpointerup = () => { dragging = false; };
  stage.onpointermove = (event) => {
    if (dragging) byHand(() => go(lanes.at(pixel(event, stage)[0])));
    point(event);
  };
  stage.onpointerleave = () => { pointed = null; tip.hidden = true; show(); };

  // Names what is under the pointer, or nearest to it in its lane.
  function point(event) {
    if (playing) return;
    const [px, py] = pixel(event, stage);
    const away = (item) => Math.max(lanes.x(item.from) - px, px - lanes.x(item.to), 0);
    const near = lanes.items.filter((item) => py >= item.y - 3 && py <= item.y + item.height + 3 && away(item) < 8).sort((a, b) => away(a) - away(b));
    pointed = near[0] ?? null;
    tip.hidden = !pointed;
    if (pointed) {
      const [head, ...rest] = itemInWords(pointed);
      tip.replaceChildren(html("b", {}, head), ...rest.map((line) => html("span", {}, line)));
      const room = stage.parentElement.clientWidth;
      const offset = stage.getBoundingClientRect().left - stage.parentElement.getBoundingClientRect().left;
      const scale = stage.getBoundingClientRect().width / stage.viewBox.baseVal.width;
      tip.style.left = `${Math.max(0, Math.min(room - tip.offsetWidth, offset + px * scale - tip.offsetWidth / 2))}px`;
      const above = pointed.y * scale - tip.offsetHeight - 8;
      tip.style.top = `${above >= 0 ? above : (pointed.y + pointed.height) * scale + 10}px`;
    }
    show();
  }

  chart.onclick = (event) => {
    const bytes = plot.capAt(pixel(event, chart)[0]);
    if (inModel()) return byHand(() => change({ cap: Math.round(2 ** Math.min(cap.input.max, Math.max(cap.input.min, Math.log2(bytes)))) }));
    const known = get("runs").map((run, i) => [i, run.cap]).filter(([, size]) => size !== null);
    if (known.length) chooseRun(known.sort((a, b) => Math.abs(Math.log(a[1] / bytes)) - Math.abs(Math.log(b[1] / bytes)))[0][0]);
  };

  root.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName, type } = event.target;
    const actions = {
      ArrowRight: () => byHand(() => next(1)),
      ArrowLeft: () => byHand(() => next(-1)),
      Home: () => byHand(() => go(0)),
      End: () => byHand(() => go(endOf(step))),
      Escape: () => { pointed = null; tip.hidden = true; show(); },
    };
    if (event.target === range) { // from event to event is finer, and names them
      actions.ArrowUp = actions.ArrowRight;
      actions.ArrowDown = actions.ArrowLeft;
    } else if (tagName === "SELECT" || type === "range" || type === "radio") return event.stopPropagation(); // they have keys of their own
    if (tagName !== "BUTTON") actions[" "] = toggle;
    if (!(event.key in actions)) return;
    event.preventDefault();
    event.stopPropagation(); // nor may anything around the timeline act on it
    actions[event.key]();
  };

  const redraw = () => { if (!quiet) { halt(); draw(); } };
  const fromModel = {
    "change:runs": () => { fillCaps(); keepKeys(root); redraw(); },
    "change:at": () => { if (!quiet) byHand(() => { at = get("at"); show(); }); },
  };
  for (const name of ["run", "step", "mode", "layers", "forward", "form", "alpha", "bandwidth", "layer_seconds", "cap"]) fromModel[`change:${name}`] = redraw;
  for (const [name, react] of Object.entries(fromModel)) model.on(name, react);

  fillCaps();
  keepKeys(root);
  draw();
  const stopFollowing = onNewWidth(root, draw);
  return () => {
    halt();
    stopFollowing();
    for (const [name, react] of Object.entries(fromModel)) model.off(name, react);
  };
}

export default { render };
