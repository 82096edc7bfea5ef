// The player: draws recordings of minidist.provenance.record. It knows nothing of any algorithm;
// everything that moves or changes comes out of `recordings` (see Recording.to_dict).

const FLIGHT_MS = 900; // one step at speed 1
const REST_MS = 550; // between two steps while playing
const NARROW = 560; // below this width ranks stand in two columns
const PAD = 8; // inside a rank's card
const HEAD = 20; // its title line
const FOOT = 14; // the chunk numbers below the cells

// --- where things are ------------------------------------------------------------------------

// Positions of all cards for a picture that is `width` pixels wide, in pixels.
function arrange(recording, width) {
  const size = recording.world_size;
  const narrow = width < NARROW;
  const elements = recording.frames[0].buffers[0].length;
  const gap = narrow ? 2 : 4;
  const spots = spotsOf(recording, narrow);
  const perRow = Math.max(...spots.rows.map((row) => row.length), 1);
  const widest = Math.min(spots.share * width, (width - 10) / perRow - 8);
  const gaps = (recording.chunks.length - 1) * gap;
  const cell = Math.max(5, Math.min(38, (widest - 2 * PAD - gaps) / elements));
  const high = narrow ? 34 : 42;
  const card = { width: elements * cell + gaps + 2 * PAD, height: HEAD + high + FOOT + PAD - 2 };
  const left = []; // left edge of each element's cell within its card
  recording.chunks.forEach(([start, stop], k) => {
    for (let e = start; e < stop; e++) left[e] = PAD + e * cell + k * gap;
  });
  const reach = width / 2 - card.width / 2 - 4;
  const pitch = card.height + (narrow ? 24 : 34);
  const rows = spots.rowCount ? spots.rowCount * pitch : 0;
  const bow = spots.bow ? (size === 2 && !narrow ? 58 : narrow ? 8 : 30) : 10;
  const ys = spots.at.map(([, y]) => y);
  const [top, bottom] = [Math.min(...ys), Math.max(...ys)]; // an odd ring has nobody at the bottom
  const height = ((bottom - top) * rows) / 2 + card.height + 2 * bow;
  const cards = spots.at.map(([x, y]) => ({
    x: width / 2 + x * reach - card.width / 2,
    y: bow + ((y - top) * rows) / 2,
  }));
  return { size, cell, gap, high, left, card, cards, width, height, bow: spots.bow, narrow };
}

// For each rank a spot in the square from -1 to 1, the share of the width that a card may take,
// and how many row pitches the square is high.
function spotsOf(recording, narrow) {
  const size = recording.world_size;
  const ranks = [...Array(size).keys()];
  if (recording.layout === "tree") return treeSpots(recording, ranks);
  if (recording.layout === "star") return starSpots(recording, ranks, narrow);
  if (size === 1) return { at: [[0, 0]], rows: [], share: 0.6, rowCount: 0, bow: true };
  if (size === 2) {
    const at = narrow ? [[0, -1], [0, 1]] : [[-0.86, 0], [0.86, 0]];
    return { at, rows: [], share: narrow ? 0.6 : 0.36, rowCount: narrow ? 1.2 : 0, bow: true };
  }
  return { at: ranks.map((r) => around(r / size, narrow)), rows: [], bow: true,
    share: narrow ? 0.46 : size < 7 ? 0.29 : 0.265,
    rowCount: narrow ? size / 2 : size < 5 ? 1.9 : size < 7 ? 2.25 : 2.6 };
}

// A point of a closed curve, clockwise from the top. Cards are wide, so on a wide page the curve is
// flattened at the sides; on a narrow one there are two columns between a top and a bottom.
function around(turn, narrow) {
  const [x, y] = [Math.sin(2 * Math.PI * turn), -Math.cos(2 * Math.PI * turn)];
  const side = Math.abs(x) < 1e-3 ? 0 : Math.sign(x);
  return narrow ? [side, 1 - 4 * Math.abs(0.5 - turn)] : [side * Math.abs(x) ** 0.6, y];
}

function starSpots(recording, ranks, narrow) {
  const hub = hubOf(recording);
  const others = ranks.filter((r) => r !== hub);
  const at = [];
  at[hub] = [0, 0];
  if (narrow) {
    const above = Math.ceil(others.length / 4) * 2;
    const rowsAbove = above / 2;
    const rowsBelow = Math.ceil((others.length - above) / 2);
    const count = rowsAbove + rowsBelow;
    const row = (n) => (count ? (2 * n) / count - 1 : 0);
    others.forEach((r, i) => {
      const line = i < above ? Math.floor(i / 2) : rowsAbove + 1 + Math.floor((i - above) / 2);
      at[r] = [i % 2 ? 1 : -1, row(line)];
    });
    at[hub] = [0, row(rowsAbove)];
    return { at, rows: [], share: 0.46, rowCount: count, bow: false };
  }
  others.forEach((r, i) => { at[r] = around((i + 0.5) / others.length, false); });
  if (others.length === 2) { at[others[0]] = [1, 0]; at[others[1]] = [-1, 0]; }
  return { at, rows: [], share: 0.265, rowCount: others.length < 3 ? 0 : 2.3, bow: false };
}

function hubOf(recording) {
  const links = linksOf(recording);
  const ranks = [...Array(recording.world_size).keys()];
  return ranks.find((r) => links.every(([src, dst]) => src === r || dst === r)) ?? 0;
}

function treeSpots(recording, ranks) {
  const depth = (r) => (recording.parents[r] === null ? 0 : 1 + depth(recording.parents[r]));
  const rows = [];
  for (const r of ranks) (rows[depth(r)] ??= []).push(r);
  const order = new Map();
  const at = [];
  rows.forEach((row, level) => {
    row.sort((a, b) => (order.get(recording.parents[a]) ?? 0) - (order.get(recording.parents[b]) ?? 0) || a - b);
    row.forEach((r, i) => {
      order.set(r, i);
      const y = rows.length > 1 ? (2 * level) / (rows.length - 1) - 1 : 0;
      at[r] = [row.length > 1 ? (2 * i) / (row.length - 1) - 1 : 0, y];
    });
  });
  // Children of one parent would stand far apart in a row of two: draw rows in towards the middle.
  const most = Math.max(...rows.map((row) => row.length));
  rows.forEach((row) => row.forEach((r) => { at[r][0] *= row.length === most ? 1 : row.length / most; }));
  return { at, rows, share: 0.3, rowCount: 1.12 * (rows.length - 1), bow: false };
}

function linksOf(recording) {
  const seen = new Map();
  for (const frame of recording.frames)
    for (const { src, dst } of frame.messages) seen.set(`${src} ${dst}`, [src, dst]);
  return [...seen.values()];
}

// The middle control point of the curve from `a` to `b`: to the left of the way, which on a ring
// that runs clockwise is the outside.
function control(a, b, picture) {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const length = Math.hypot(dx, dy) || 1;
  const bend = picture.bow ? Math.min(0.22 * length, 60) : 0;
  const push = picture.size === 2 && !picture.narrow ? 120 : bend;
  return { x: (a.x + b.x) / 2 + (dy / length) * push, y: (a.y + b.y) / 2 - (dx / length) * push };
}

function along(a, b, picture, t) {
  const c = control(a, b, picture);
  const mix = (p, q, r) => (1 - t) ** 2 * p + 2 * t * (1 - t) * q + t ** 2 * r;
  return { x: mix(a.x, c.x, b.x), y: mix(a.y, c.y, b.y) };
}

// How far along the way from `a` to `b` no card is in the way; the middle if it is free.
function clearSpot(a, b, picture) {
  const { width, height } = picture.card;
  const covered = (p) => picture.cards.some((c) => p.x > c.x - 10 && p.x < c.x + width + 10 && p.y > c.y - 10 && p.y < c.y + height + 10);
  for (let off = 0; off < 0.5; off += 0.02)
    for (const t of [0.5 + off, 0.5 - off]) if (!covered(along(a, b, picture, t))) return t;
  return 0.5;
}

function middle(picture, rank) {
  const { x, y } = picture.cards[rank];
  return { x: x + picture.card.width / 2, y: y + picture.card.height / 2 };
}

// --- drawing ---------------------------------------------------------------------------------

function chunkOf(recording, element) {
  return recording.chunks.findIndex(([start, stop]) => element >= start && element < stop);
}

const isEmpty = (cell) => cell.parts !== null && cell.parts.length === 0;

// Which chunk a cell's content belongs to; null if it is empty, mixed or unknown.
function contentChunk(recording, cell) {
  if (!cell.parts || !cell.parts.length) return null;
  const chunks = new Set(cell.parts.map(([, element]) => chunkOf(recording, element)));
  return chunks.size === 1 ? [...chunks][0] : null;
}

const signature = (recording, cell) =>
  cell.parts === null ? "?" : JSON.stringify([contentChunk(recording, cell), cell.parts.map(([r, , n]) => [r, n])]);

// Neighbouring elements of one chunk whose contributions are the same share one box.
function boxes(recording, elements, cells) {
  const found = [];
  elements.forEach((element, i) => {
    if (element === null) return;
    const chunk = chunkOf(recording, element);
    const key = `${chunk} ${signature(recording, cells[i])}`;
    const last = found[found.length - 1];
    if (last && last.key === key && last.elements[last.elements.length - 1] === element - 1) {
      last.elements.push(element);
      last.cells.push(cells[i]);
    } else found.push({ key, chunk, elements: [element], cells: [cells[i]] });
  });
  return found;
}

function drawBox(recording, picture, box, { done = false, wrong = false, flying = false } = {}) {
  const { cell: wide, high, left } = picture;
  const x = left[box.elements[0]];
  const width = left[box.elements[box.elements.length - 1]] + wide - x;
  const first = box.cells[0];
  const content = contentChunk(recording, first);
  const group = svg("g", { class: "mp-box" });
  const frame = { x: x + 0.75, y: HEAD + 0.75, width: width - 1.5, height: high - 1.5, rx: Math.min(5, wide / 4) };
  if (flying) group.append(svg("rect", { ...frame, class: "mp-under" }));
  if (isEmpty(first)) {
    group.append(svg("rect", { ...frame, class: "mp-empty" }));
    return group;
  }
  const shade = content === null ? "var(--w-muted)" : colour(content);
  const looks = done ? "mp-done" : "mp-part";
  group.append(svg("rect", { ...frame, class: looks, style: `--c:${shade}` }));
  if (first.parts === null) group.append(svg("rect", { ...frame, class: "mp-unknown" }));
  const gauge = Math.round(high * 0.36);
  if (!done && first.parts !== null) group.append(drawSlots(recording, picture, first, x, width, gauge));
  if (wrong) group.append(svg("rect", { ...frame, class: "mp-wrong" }));
  const fontSize = Math.min(done ? 16 : 15, wide * (box.elements.length > 1 ? 0.56 : 0.64));
  if (fontSize >= 7) {
    box.elements.forEach((element, i) => {
      const text = svg("text", {
        x: left[element] + wide / 2,
        y: HEAD + (done || first.parts === null ? high / 2 : (high - gauge) / 2) + fontSize * 0.36,
        class: "mp-value",
        "font-size": fontSize,
        style: done && content !== null ? `fill:${onColour(content)};font-weight:700` : "",
      });
      text.textContent = box.cells[i].value ?? "?";
      group.append(text);
    });
  }
  return group;
}

// One slot per rank, filled if that rank's contribution is in.
function drawSlots(recording, picture, cell, x, width, gauge) {
  const size = picture.size;
  const inset = width > 22 ? 4 : 2.5;
  const room = Math.min(width - 2 * inset, size * 12);
  const start = x + (width - room) / 2;
  const pitch = room / size;
  const thick = Math.max(1.2, pitch - (pitch > 4 ? 1.5 : 0.7));
  const top = HEAD + picture.high - gauge - 1.5;
  const tall = gauge - 2.5;
  const group = svg("g");
  const bars = new Map();
  const bar = (rank) => `M${(start + rank * pitch).toFixed(2)} ${top}h${thick.toFixed(2)}v${tall}h${-thick.toFixed(2)}z`;
  const counts = new Map();
  for (const [rank, element, times] of cell.parts) {
    const shade = colour(chunkOf(recording, element));
    counts.set(rank, (counts.get(rank) ?? 0) + times);
    bars.set(rank, shade);
  }
  let hollow = "";
  for (let rank = 0; rank < size; rank++) if (!counts.has(rank)) hollow += bar(rank);
  if (hollow) group.append(svg("path", { d: hollow, class: "mp-slot" }));
  const shades = new Map();
  for (const [rank, shade] of bars) {
    const key = counts.get(rank) > 1 ? "var(--w-bad)" : shade;
    shades.set(key, (shades.get(key) ?? "") + bar(rank));
  }
  for (const [shade, d] of shades) group.append(svg("path", { d, style: `fill:${shade}` }));
  for (const [rank, times] of counts) {
    if (times < 2 || thick < 5) continue;
    const text = svg("text", { x: start + rank * pitch + thick / 2, y: top + tall - 3, class: "mp-times" });
    text.textContent = times;
    group.append(text);
  }
  return group;
}

function drawCard(recording, picture, rank, step, changed) {
  const { x, y } = picture.cards[rank];
  const group = svg("g", { transform: `translate(${x} ${y})` });
  group.append(svg("rect", { class: "mp-card", width: picture.card.width, height: picture.card.height, rx: 9 }));
  const title = svg("text", { class: "mp-rank", x: PAD + 1, y: HEAD - 6 });
  title.textContent = picture.card.width < 48 ? rank : `rank ${rank}`;
  group.append(title);
  const last = recording.finished && step === recording.frames.length - 1;
  const numbers = recording.frames[step].buffers[rank];
  const goals = recording.goals[rank];
  const cells = numbers.map((n) => recording.cells[n]);
  const states = numbers.map((n, e) => (goals[e] === null ? "" : n === goals[e] ? "done" : last ? "wrong" : ""));
  for (const box of boxes(recording, [...cells.keys()], cells)) {
    const same = (name) => box.elements.every((e) => states[e] === name);
    const drawn = drawBox(recording, picture, box, { done: same("done"), wrong: box.elements.some((e) => states[e] === "wrong") });
    if (box.elements.some((e) => changed.has(`${rank} ${e}`))) drawn.classList.add("mp-landed");
    group.append(drawn);
  }
  recording.chunks.forEach(([start, stop], k) => {
    const text = svg("text", {
      class: "mp-chunk-name",
      x: (picture.left[start] + picture.left[stop - 1] + picture.cell) / 2,
      y: HEAD + picture.high + FOOT - 3,
    });
    text.textContent = picture.cell * (stop - start) < 7 ? "" : k;
    group.append(text);
  });
  return group;
}

function drawLinks(recording, picture) {
  const group = svg("g", { class: "mp-links" });
  const links = linksOf(recording);
  for (const [src, dst] of links) {
    const [a, b] = [middle(picture, src), middle(picture, dst)];
    const c = control(a, b, picture);
    group.append(svg("path", { d: `M${a.x} ${a.y}Q${c.x} ${c.y} ${b.x} ${b.y}`, class: "mp-link" }));
  }
  return group;
}

// What travelled in the step just shown, as small flags on the links.
function drawFlags(recording, picture, frame) {
  const group = svg("g");
  for (const message of frame.messages) {
    const [a, b] = [middle(picture, message.src), middle(picture, message.dst)];
    const t = clearSpot(a, b, picture);
    const mid = along(a, b, picture, t);
    const ahead = along(a, b, picture, t + 0.02);
    const turn = (Math.atan2(ahead.y - mid.y, ahead.x - mid.x) * 180) / Math.PI;
    const chunks = [...new Set(message.elements.filter((e) => e !== null).map((e) => chunkOf(recording, e)))];
    const flag = svg("g", { transform: `translate(${mid.x} ${mid.y})`, class: message.received ? "mp-flag" : "mp-flag mp-lost" });
    const wide = Math.max(18, 12 * chunks.length + 6);
    const reach = wide / 2 + (Math.abs(Math.sin((turn * Math.PI) / 180)) > 0.7 ? 9 - wide / 2 : 0);
    flag.append(svg("path", { d: `M${reach + 2} -6l10 6-10 6z`, transform: `rotate(${turn})`, class: "mp-arrow" }));
    flag.append(svg("rect", { x: -wide / 2, y: -9, width: wide, height: 18, rx: 9, class: "mp-under" }));
    if (chunks.length < 2) {
      const k = chunks[0];
      const shade = k === undefined ? "var(--w-muted)" : colour(k);
      flag.append(svg("rect", { x: -wide / 2, y: -9, width: wide, height: 18, rx: 9, style: `fill:${shade}` }));
      const text = svg("text", { y: 4, class: "mp-flag-name", style: k === undefined ? "" : `fill:${onColour(k)}` });
      text.textContent = k ?? "–";
      flag.append(text);
    } else chunks.forEach((k, i) => flag.append(svg("rect", { x: 12 * i - wide / 2 + 4, y: -6, width: 10, height: 12, rx: 3, style: `fill:${colour(k)}` })));
    group.append(flag);
  }
  return group;
}

function drawToken(recording, picture, message) {
  const group = svg("g", { class: "mp-token" });
  const cells = message.cells.map((n) => recording.cells[n]);
  const found = boxes(recording, message.elements, cells);
  for (const box of found) {
    const goals = box.elements.map((e) => recording.goals[message.dst][e]);
    const numbers = box.elements.map((e) => message.cells[message.elements.indexOf(e)]);
    group.append(drawBox(recording, picture, box, { flying: true, done: goals.every((g, i) => g !== null && g === numbers[i]) }));
  }
  if (!found.length) // only padding
    group.append(svg("rect", { x: PAD, y: HEAD, width: picture.cell, height: picture.high, class: "mp-empty" }));
  return group;
}

// Cells that differ from one frame to the next.
function changes(before, after) {
  const changed = new Set();
  after.buffers.forEach((buffer, rank) => buffer.forEach((cell, element) => {
    if (cell !== before.buffers[rank][element]) changed.add(`${rank} ${element}`);
  }));
  return changed;
}

function drawBytes(recording, step, width) {
  const size = recording.world_size;
  const sent = recording.frames[step].sent;
  const final = recording.frames[recording.frames.length - 1].sent;
  const top = Math.max(...final, recording.bound ?? 0, 1);
  const [high, base] = [46, 60];
  const pitch = Math.min(46, (width - 8) / size);
  const picture = svg("svg", { width: pitch * size + 8, height: base + 14, "aria-hidden": "true" });
  const texts = [];
  sent.forEach((bytes, rank) => {
    const x = 4 + rank * pitch;
    const tall = (high * bytes) / top;
    picture.append(svg("rect", { x: x + 3, y: base - high, width: pitch - 6, height: high, rx: 3, class: "mp-bar-room" }));
    picture.append(svg("rect", { x: x + 3, y: base - tall, width: pitch - 6, height: tall, rx: tall > 3 ? 3 : 0, class: "mp-bar" }));
    const number = svg("text", { x: x + pitch / 2, y: base - Math.max(tall, 0) - 3, class: "mp-bar-number" });
    number.textContent = bytes;
    const name = svg("text", { x: x + pitch / 2, y: base + 11, class: "mp-chunk-name" });
    name.textContent = rank;
    texts.push(number, name);
  });
  if (recording.bound) {
    const y = base - (high * recording.bound) / top;
    picture.append(svg("path", { d: `M0 ${y}H${pitch * size + 8}`, class: "mp-bound" }));
  }
  picture.append(...texts);
  return picture;
}

const plain = (number) => String(Math.round(number * 10) / 10);

function bytesInWords(recording, step) {
  const sent = recording.frames[step].sent;
  const [least, most] = [Math.min(...sent), Math.max(...sent)];
  const text = least === most ? `Each rank has sent ${most} bytes` : `A rank has sent ${least} to ${most} bytes`;
  if (!recording.bound) return `${text}.`;
  const name = `${/^[aeiou]/.test(recording.op) ? "an" : "a"} ${recording.op.replace("_", "-")}`;
  return `${text}; ${name} needs at least ${plain(recording.bound)} per rank on average.`;
}

// --- the widget ------------------------------------------------------------------------------

function render({ model, el }) {
  const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
  let recording, picture;
  let step = 0;
  let flight = null; // {tokens, began, duration} while messages travel
  let playing = false;
  let timer = 0;
  let request = 0;

  const stage = svg("svg", { role: "img", class: "w-stage" });
  const status = html("p", { class: "mp-text", role: "status", "aria-live": "polite" });
  const error = html("pre", { class: "mp-error", hidden: "" });
  const [back] = button("Step back", "back");
  const [play, setPlay] = button("Play", "play");
  const [forward] = button("Step forward", "forward");
  play.classList.add("w-main");
  const range = html("input", { type: "range", min: "0", value: "0", "aria-label": "Step" });
  const speed = html("select", { "aria-label": "Speed" });
  options(speed, [["0.5", "slow"], ["1", "normal"], ["2", "fast"]], "1");
  const sizes = html("select", { "aria-label": "World size" });
  const sizesLabel = labelled("World size", sizes);
  const count = html("span", { class: "w-count", "aria-hidden": "true" });
  const bytes = html("div", { class: "mp-bytes" });
  const bytesText = html("p", { class: "mp-bytes-text" });
  const root = html("div", { class: "minidist-widget minidist-player", role: "group", tabindex: "0" },
    stage, status, error,
    html("div", { class: "w-controls" }, html("div", { class: "w-buttons" }, back, play, forward), range, count),
    html("div", { class: "mp-more" }, html("div", { class: "mp-sent" }, bytes, bytesText),
      html("div", { class: "mp-choices" }, labelled("Speed", speed), sizesLabel)));
  keepKeys(root);
  el.append(root);

  const recordings = () => model.get("recordings");
  const lastStep = () => recording.frames.length - 1;

  function choose(worldSize) {
    const all = recordings();
    recording = all.find((r) => r.world_size === worldSize) ?? all[0];
    sizes.replaceChildren();
    options(sizes, all.map((r) => [r.world_size, r.world_size]), recording.world_size);
    sizesLabel.hidden = all.length < 2;
    range.max = lastStep();
    root.setAttribute("aria-label", `Recorded run of ${model.get("name")} on ${recording.world_size} rank${recording.world_size > 1 ? "s" : ""}`);
    root.dataset.steps = lastStep();
    root.dataset.layout = recording.layout;
    measure();
  }

  function measure() {
    picture = arrange(recording, widthFor(root, 240));
    resize(stage, picture.width, picture.height);
  }

  function draw() {
    const frame = recording.frames[step];
    const shown = flight ? step - 1 : step;
    const changed = !flight && step > 0 ? changes(recording.frames[step - 1], frame) : new Set();
    const title = svg("title");
    title.textContent = `${recording.world_size} ranks and their buffers after ${step} of ${lastStep()} steps`;
    const description = svg("desc");
    description.textContent = inWords(frame);
    stage.replaceChildren(title, description, drawLinks(recording, picture));
    for (let rank = 0; rank < recording.world_size; rank++)
      stage.append(drawCard(recording, picture, rank, shown, changed));
    if (flight) {
      flight.tokens = frame.messages.map((message) => drawToken(recording, picture, message));
      stage.append(...flight.tokens);
      moveTokens();
    } else stage.append(drawFlags(recording, picture, frame));

    root.dataset.step = step;
    const words = frame.text.replace(/\b(ranks?|chunks?|step|of) (\d)/gi, "$1\u00a0$2"); // keep together
    if (status.textContent !== words) status.textContent = words;
    range.value = step;
    range.setAttribute("aria-valuetext", `${step} of ${lastStep()} steps done`);
    count.textContent = `${step} / ${lastStep()}`;
    back.disabled = step === 0;
    forward.disabled = step === lastStep();
    const note = model.get("note");
    const reasons = [note, note.includes(recording.error) ? "" : recording.error];
    const trouble = step === lastStep() ? reasons.filter(Boolean).join("\n\n") : "";
    error.hidden = !trouble;
    error.textContent = trouble;
    bytes.replaceChildren(drawBytes(recording, step, Math.min(picture.width, 270)));
    bytesText.textContent = bytesInWords(recording, step);
  }

  // Each rank's numbers, for those who do not see the picture.
  function inWords(frame) {
    return frame.buffers.map((buffer, rank) => {
      const chunks = recording.chunks.map(([start, stop], k) => {
        const cells = buffer.slice(start, stop).map((n) => recording.cells[n]);
        const from = [...new Set(cells.flatMap((c) => (c.parts ?? []).map(([r]) => r)))].sort();
        const values = cells.map((c) => (isEmpty(c) ? "empty" : c.value ?? "unknown")).join(" ");
        return `chunk ${k}: ${values}${from.length ? ` from rank${from.length > 1 ? "s" : ""} ${from.join(", ")}` : ""}`;
      });
      return `Rank ${rank}: ${chunks.join("; ")}.`;
    }).join(" ");
  }

  function moveTokens() {
    const t = Math.min(1, (performance.now() - flight.began) / flight.duration);
    const eased = t < 0.5 ? 4 * t ** 3 : 1 - (-2 * t + 2) ** 3 / 2;
    recording.frames[step].messages.forEach((message, i) => {
      const [a, b] = [picture.cards[message.src], picture.cards[message.dst]];
      const at = along(a, b, picture, message.received ? eased : Math.min(eased, 0.5));
      flight.tokens[i].setAttribute("transform", `translate(${at.x} ${at.y})`);
    });
    return t < 1;
  }

  function tick() {
    if (!flight) return;
    if (!root.isConnected) return halt();
    if (moveTokens()) request = requestAnimationFrame(tick);
    else land();
  }

  function land() {
    flight = null;
    cancelAnimationFrame(request);
    draw();
    if (playing) timer = setTimeout(next, REST_MS / Number(speed.value) + (reduced.matches ? FLIGHT_MS / Number(speed.value) : 0));
  }

  function next() {
    if (step >= lastStep()) return halt();
    go(step + 1, !reduced.matches);
    if (reduced.matches) land();
  }

  function go(to, fly = false) {
    clearTimeout(timer);
    cancelAnimationFrame(request);
    flight = null;
    step = Math.max(0, Math.min(lastStep(), to));
    if (fly && step > 0 && recording.frames[step].messages.length) {
      flight = { began: performance.now(), duration: FLIGHT_MS / Number(speed.value) };
      request = requestAnimationFrame(tick);
    }
    draw();
    if (model.get("step") !== step) {
      model.set("step", step);
      model.save_changes();
    }
  }

  function halt() {
    playing = false;
    clearTimeout(timer);
    setPlay("Play", "play");
  }

  function toggle() {
    if (playing) return halt();
    playing = true;
    setPlay("Pause", "pause");
    if (step >= lastStep()) {
      go(0);
      timer = setTimeout(next, REST_MS);
    } else next();
  }

  function byHand(to, fly = false) {
    halt();
    go(to, fly && !reduced.matches);
  }

  back.onclick = () => byHand(step - 1);
  forward.onclick = () => byHand(step + 1, true);
  play.onclick = toggle;
  range.oninput = () => byHand(Number(range.value));
  sizes.onchange = () => {
    halt();
    choose(Number(sizes.value));
    go(0);
    model.set("world_size", recording.world_size);
    model.save_changes();
  };
  root.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const tag = event.target.tagName;
    if (tag === "INPUT" || tag === "SELECT") return; // they have keys of their own
    const actions = {
      ArrowRight: () => byHand(step + 1, true),
      ArrowLeft: () => byHand(step - 1),
      Home: () => byHand(0),
      End: () => byHand(lastStep()),
    };
    if (tag !== "BUTTON") actions[" "] = toggle;
    if (!(event.key in actions)) return;
    event.preventDefault();
    event.stopPropagation(); // nor may anything around the player act on it
    actions[event.key]();
  };

  const fromModel = {
    "change:recordings": () => { halt(); choose(model.get("world_size")); go(0); },
    "change:world_size": () => {
      if (model.get("world_size") === recording.world_size) return;
      halt();
      choose(model.get("world_size"));
      go(0);
    },
    "change:step": () => { if (model.get("step") !== step) byHand(model.get("step")); },
    "change:note": () => draw(),
  };
  for (const [name, react] of Object.entries(fromModel)) model.on(name, react);
  choose(model.get("world_size"));
  go(model.get("step"));
  const stopFollowing = onNewWidth(root, () => { measure(); draw(); });
  return () => {
    halt();
    cancelAnimationFrame(request);
    stopFollowing();
    for (const [name, react] of Object.entries(fromModel)) model.off(name, react);
  };
}

export default { render };
