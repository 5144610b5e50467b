// The renderer of charts: it knows panels, axes and marks, but no particular figure. A description
// is a table and the panels that show its columns (rcdiag/pages/charts.py); defaults are absent.
const TONES = { first: "first", second: "second", ink: "tone-ink", soft: "tone-soft" };
const [USUAL, DENSE] = [240, 135]; // height of a plot, on screen and on paper
const LANE = 14; // height of a line of labels of reference lines
const STACKED = 16; // height of a name that is written above its row
const [BESIDE, DENSELY] = [250, 150]; // minimum width of a panel beside another, on screen and on paper

// The rows of a mark, with the numbers and names from its columns.
function layerOf(chart, panel, mark) {
  const read = (name) => (name === undefined || name === null ? -1 : chart.columns.indexOf(name));
  const [x, y, to, low, high, value, group] = [mark.x, mark.y, mark.to, mark.low, mark.high, mark.value, mark.group].map(read);
  const wanted = [panel.where, mark.where].filter(Boolean).map(([name, only]) => [read(name), only]);
  const slots = { x: slotsOf(panel.x), y: slotsOf(panel.y) };
  const shown = (at, side) => (panel[side].scale === "names" ? slots[side].has(at) : typeof at === "number");
  const points = chart.rows
    .filter((row) => wanted.every(([place, only]) => row[place] === only))
    .map((row) => ({ row, x: row[x], y: mark.lane ?? row[y], to: row[to], low: row[low], high: row[high], value: row[value], group: row[group] }))
    .filter((point) => shown(point.x, "x") && shown(point.y, "y") && (mark.shape !== "cell" || typeof point.value === "number"));
  return { mark, points };
}

// All numbers of a panel along one of its axes.
function numbersAlong(side, panel, layers) {
  if (panel[side].scale === "names") return [];
  const own = panel.y.scale === "names" ? "x" : "y"; // the axis of intervals
  const points = layers.flatMap((layer) => layer.points);
  const half = layers.some(({ mark }) => mark.shape === "cell") ? (panel.cell ?? [1, 1])[side === "x" ? 0 : 1] / 2 : 0;
  return known([
    ...points.flatMap((point) => [point[side] - half, point[side] + half]),
    ...(side === "x" ? points.map((point) => point.to) : []),
    ...(side === own ? points.flatMap((point) => [point.low, point.high]) : []),
    ...(panel.rules ?? []).filter((rule) => (rule.axis ?? "x") === side && !rule.label).map((rule) => rule.at),
    ...(side === "x" && panel.band ? [panel.band.start, panel.band.end] : []),
  ]);
}

// The height of the plot, and what is left of it: ticks, or names beside or above their rows.
function sideOf(panel, y, layers, width, dense) {
  if (panel.y.scale !== "names") {
    const left = widest(y);
    return { left, height: panel.square ? Math.min(width - left - 10, 420) : (dense ? DENSE : USUAL) * (panel.height ?? 1) };
  }
  const line = (dense ? 14 : 24) + (layers.some(({ mark }) => mark.shape === "cell") ? 8 : 0);
  const size = panel.y.names.length;
  if (panel.y.hidden) return { left: 0, line, height: size * line };
  const longest = Math.max(...panel.y.names.map((name) => name.length), 0) * TEXT + 12;
  const stacked = width < 520 || longest > width * 0.45;
  return { left: stacked ? 8 : longest, line: line + (stacked ? STACKED - 4 : 0), stacked, height: size * (line + (stacked ? STACKED - 4 : 0)) };
}

// How names below an axis fit their slots: whole, thinned out if they are numbers, or turned.
function namesBelow(axis, slot, room) {
  const longest = Math.max(...axis.names.map((name) => name.length), 0) * TEXT;
  if (longest + 6 <= slot) return { every: 1, turned: false, height: 20 };
  const counting = axis.names.every((name) => /^\d+$/.test(name));
  if (counting) return { every: Math.ceil((longest + 8) / slot), turned: false, height: 20 };
  const length = Math.min(longest + 1, room);
  return { every: Math.ceil(15 / slot), turned: true, length, height: 0.58 * length + 14 };
}

// Positions of the labels of reference lines: right or left of the lines, or as far right as the
// panel allows, and stacked where they would overlap.
function lanesOfRules(rules, at, width) {
  const ends = [];
  return [...rules].sort((one, other) => one.at - other.at).map(({ at: place, label: text }) => {
    const [here, label] = [at(place), fitted(text, width - 6)];
    const size = label.length * TEXT + 6;
    const end = here + size > width && here >= size;
    const from = end ? here - size : Math.max(Math.min(here, width - size), 0);
    const to = from + size;
    const free = ends.findIndex((last) => last < from);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = to;
    return { here, label, lane, end, from };
  });
}

// The width of the plot, such that notes that begin in it end within the chart.
function widthWithNotes(panel, x, room) {
  const rooms = (panel.notes ?? []).map((note) => {
    const begins = x.place(note.x) - (x.step ?? 0) / 2;
    return (room - Math.min(extent(note.text) + 10, room * 0.4)) / Math.max(begins, 0.01);
  });
  return Math.min(room - 12, ...rooms);
}

// Draws a panel; returns its element, its height, and the spots that can be pointed at.
function drawPanel(chart, panel, width, dense) {
  const root = svg("g");
  const layers = panel.marks.map((mark) => layerOf(chart, panel, mark));
  const y = makeScale(panel.y, numbersAlong("y", panel, layers));
  const side = sideOf(panel, y, layers, width, dense);
  const xs = numbersAlong("x", panel, layers);
  const letters = Math.max(...[Math.min(...xs), Math.max(...xs)].map((value) => number(value).length), 2);
  const rules = (panel.rules ?? []).filter(({ at, label, axis }) => axis !== "y" && label && at >= Math.min(...xs) && at <= Math.max(...xs));
  const x = makeScale(panel.x, xs, Math.min(Math.max((width - side.left) / (letters * TEXT + 24), 3), 8));
  const inner = widthWithNotes(panel, x, width - side.left);
  const lanes = lanesOfRules(rules, (value) => side.left + x.place(value) * inner, width);
  const title = panel.title ? 20 : 0;
  const label = panel.y.label ? 26 : 6; // its line, and room above the label of the highest tick
  const strip = lanes.length ? LANE * (1 + Math.max(...lanes.map(({ lane }) => lane))) : panel.band ? LANE : 0;
  const box = { left: side.left, top: title + label + strip, width: inner, height: side.height };
  const plot = placesIn(box, side, x, y);
  if (panel.title) root.append(svg("text", { class: "strong", x: 0, y: 13 }, fitted(panel.title, width)));
  if (panel.y.label) root.append(svg("g", { class: "axis" }, svg("text", { x: 0, y: title + 12 }, fitted(panel.y.label, width))));
  const below = drawAxes(root, panel, box, side, plot, x, y, width, chart);
  drawReferences(root, panel, box, plot, lanes, width);
  const spots = layers.flatMap((layer) => SHAPES[layer.mark.shape](root, layer, { chart, panel, plot, box, width }));
  drawNotes(root, panel, plot, width);
  return { root, height: box.top + box.height + below, spots };
}

// Draws a panel's band, its reference lines, and the diagonal of a square panel.
function drawReferences(root, panel, box, plot, lanes, width) {
  const bottom = box.top + box.height;
  if (panel.band) {
    const { start, end, label } = panel.band;
    root.append(svg("rect", { class: "floor", x: plot.at(start), width: Math.max(plot.at(end) - plot.at(start), 2), y: box.top, height: box.height }));
    root.append(svg("text", { class: "soft", x: Math.min(plot.at(start), width - extent(label)), y: box.top - 4 }, label));
  }
  for (const { at, axis, dashed } of (panel.rules ?? []).filter((rule) => !rule.label)) {
    const ends = axis === "y" ? { x1: box.left, x2: box.left + box.width, y1: plot.up(at), y2: plot.up(at) } : { x1: plot.at(at), x2: plot.at(at), y1: box.top, y2: bottom };
    root.append(svg("line", { class: dashed ? "markline" : "zero", ...ends }));
  }
  if (panel.square) root.append(svg("line", { class: "zero", x1: box.left, x2: box.left + box.width, y1: bottom, y2: box.top }));
  for (const { here, label, lane, end, from } of lanes) {
    const top = box.top - LANE * lane;
    root.append(svg("line", { class: "markline", x1: here, x2: here, y1: top - LANE + 3, y2: bottom }));
    root.append(svg("text", { class: "soft", x: end ? here - 4 : from + 4, y: top - 3, "text-anchor": end ? "end" : "start" }, label));
  }
}

// Draws notes at their points: in the slot of a name, or at a number.
function drawNotes(root, panel, plot, width) {
  for (const { text, x: begin, y: beside, tone } of panel.notes ?? []) {
    const place = plot.at(begin) - plot.slot / 2 + 6;
    root.append(svg("text", { class: `strong ${TONES[tone ?? "ink"]}`, x: place, y: plot.up(beside) + 4 }, fitted(text, width - place)));
  }
}

// Functions that place numbers and names in a box; `slot` and `tall` are the space for a name.
function placesIn(box, side, x, y) {
  const head = side.stacked ? STACKED : 0;
  return {
    x, y,
    at: (value) => box.left + x.place(value) * box.width,
    up: (value) => (side.line ? box.top + (y.place(value) - 0.5 * y.step) * box.height + head + (side.line - head) / 2 : box.top + (1 - y.place(value)) * box.height),
    slot: (x.step ?? 0) * box.width,
    tall: side.line ? side.line - head - 2 : 0,
    line: side.line,
  };
}

// Draws lines, ticks and labels of both axes; returns the height of everything below the plot.
function drawAxes(root, panel, box, side, plot, x, y, width, chart) {
  const bottom = box.top + box.height;
  const axes = svg("g", { class: "axis" });
  root.append(axes);
  if (side.line) {
    for (const name of panel.y.names) {
      const [middle, strong, faint] = [plot.up(name), name === chart.strong, (chart.pale ?? []).includes(name)];
      if (panel.shade === undefined && panel.marks.some((mark) => mark.shape === "cell")) axes.append(svg("rect", { class: "lane", x: box.left, y: middle - plot.tall / 2, width: box.width, height: plot.tall }));
      if (panel.y.hidden) continue;
      const place = side.stacked ? { x: box.left, y: middle - plot.tall / 2 - 4 } : { x: box.left - 10, y: middle + 4, "text-anchor": "end" };
      root.append(svg("text", { class: `over${strong ? " strong" : ""}${faint ? " faint" : ""}`, ...place }, fitted(name, side.stacked ? width - 10 : box.left)));
    }
  } else {
    for (const tick of panel.y.hidden ? [] : y.ticks) {
      const place = plot.up(tick);
      if (place < box.top - 1 || place > bottom + 1) continue;
      axes.append(svg("line", { class: "rule", x1: box.left, x2: box.left + box.width, y1: place, y2: place }));
      axes.append(svg("text", { x: box.left - 6, y: place + 4, "text-anchor": "end" }, y.text(tick)));
    }
  }
  let down = 6;
  if (!panel.x.hidden) down = panel.x.scale === "names" ? drawNamesBelow(axes, panel.x, box, plot, width) : drawTicksBelow(axes, box, plot, x, width);
  if (!panel.x.label) return down + 4;
  axes.append(svg("text", { x: box.left + box.width / 2, y: bottom + down + 13, "text-anchor": "middle" }, fitted(panel.x.label, box.width + 2 * Math.min(box.left, width - box.left - box.width))));
  return down + 20;
}

function drawTicksBelow(axes, box, plot, x, width) {
  const bottom = box.top + box.height;
  let taken = -Infinity;
  for (const tick of [...x.ticks].sort((a, b) => a - b)) {
    const [text, place] = [x.text(tick), plot.at(tick)];
    const half = extent(text) / 2;
    if (place < box.left - 1 || place > box.left + box.width + 1) continue;
    axes.append(svg("line", { class: "rule", x1: place, x2: place, y1: box.top, y2: bottom }));
    const middle = Math.min(Math.max(place, half), width - half);
    if (middle - half < taken + 6) continue;
    taken = middle + half;
    axes.append(svg("text", { x: middle, y: bottom + 16, "text-anchor": "middle" }, text));
  }
  return 20;
}

function drawNamesBelow(axes, axis, box, plot, width) {
  const bottom = box.top + box.height;
  const { every, turned, length, height } = namesBelow(axis, plot.slot, Math.min(box.left + plot.slot + 60, 130));
  axis.names.forEach((name, place) => {
    if (place % every) return;
    const here = plot.at(name);
    const half = extent(name) / 2;
    const where = turned ? { x: 0, y: 0, transform: `translate(${here + 4} ${bottom + 12}) rotate(-40)`, "text-anchor": "end" } : { x: Math.min(here, width - half), y: bottom + 16, "text-anchor": "middle" };
    // A turned name ends below its slot, and must begin within the chart.
    axes.append(svg("text", where, turned ? fitted(name, Math.min(length, (here - 4) / 0.77)) : name));
  });
  return height;
}

// Runs of points of a line that have an interval, since only these are shaded.
function bandsOf(points) {
  const bands = [[]];
  for (const point of points) {
    if (typeof point.low === "number" && typeof point.high === "number") bands.at(-1).push(point);
    else if (bands.at(-1).length) bands.push([]);
  }
  return bands.filter((band) => band.length);
}

function drawLines(root, { mark, points }, { chart, plot }) {
  const { at, up } = plot;
  const tone = TONES[mark.tone ?? "first"];
  const path = (places) => `M${places.map(([x, y]) => `${at(x).toFixed(1)} ${up(y).toFixed(1)}`).join("L")}`;
  return [...new Set(points.map((point) => point.group))].flatMap((group) => {
    const some = points.filter((point) => point.group === group);
    for (const band of bandsOf(some)) {
      if (band.length > 1) root.append(svg("path", { class: `area ${tone}`, d: `${path([...band.map((p) => [p.x, p.high]), ...[...band].reverse().map((p) => [p.x, p.low])])}Z` }));
      else root.append(svg("line", { class: `error-bar ${tone}`, "stroke-opacity": 0.4, x1: at(band[0].x), x2: at(band[0].x), y1: up(band[0].low), y2: up(band[0].high) }));
    }
    root.append(svg("path", { class: `series ${tone}${mark.dashed ? " dashed" : ""}${mark.thin ? " thin" : ""}`, d: path(some.map((p) => [p.x, p.y])) }));
    if (mark.points) for (const point of some) root.append(svg("circle", { class: `dot ${tone}`, cx: at(point.x), cy: up(point.y), r: 3 }));
    return some.map(({ row, x, y }) => ({ x: at(x), y: up(y), row, head: group ?? mark.label ?? headOf(chart, row), flat: 0.5, column: mark.y }));
  });
}

function drawDots(root, { mark, points }, { chart, panel, plot, width }) {
  const across = panel.y.scale === "names";
  return points.map((point) => {
    const { row, low, high } = point;
    const [x, y] = [plot.at(point.x), plot.up(point.y) + (mark.shift ?? 0) * (plot.line ?? 0)];
    const strong = row[0] === chart.strong;
    const faint = (chart.pale ?? []).includes(row[0]);
    const tone = strong && (mark.tone ?? "first") === "first" && !mark.shift ? "second" : TONES[mark.tone ?? "first"];
    const group = svg("g", { class: faint ? "faint" : null });
    if (typeof low === "number" || typeof high === "number") {
      const [start, end] = [low ?? point[across ? "x" : "y"], high ?? point[across ? "x" : "y"]];
      const line = across ? { x1: plot.at(start), x2: plot.at(end), y1: y, y2: y } : { x1: x, x2: x, y1: plot.up(start), y2: plot.up(end) };
      group.append(svg("line", { class: `error-bar ${tone}`, ...line }));
      // An interval that reaches 0 has no left end on a logarithmic axis.
      if (across && panel.x.scale === "log" && low <= 0) group.append(svg("path", { class: `dot ${tone}`, d: `M${plot.at(start) - 6} ${y}l6 -4v8z` }));
    }
    const look = `dot ${tone}${mark.hollow ? " hollow" : ""}${chart.opens ? " opens" : ""}`;
    group.append(svg("circle", { class: look, cx: x, cy: y, r: mark.small ? 1.5 : strong ? 6 : 4, "fill-opacity": mark.small ? 0.5 : null, "data-row": row[0] }));
    if (strong && !across) group.append(svg("text", { class: "strong over", x: x + (x > width * 0.6 ? -10 : 10), y: y + (y < 40 ? 18 : -8), "text-anchor": x > width * 0.6 ? "end" : "start" }, row[0]));
    root.append(group);
    return { x, y, row, head: headOf(chart, row), column: mark.y };
  });
}

function drawBars(root, { mark, points }, { chart, plot, box }) {
  const base = box.top + box.height;
  return points.map((point) => {
    const y = Math.min(plot.up(point.y), base);
    const wide = Math.min(plot.slot * 0.74, 70) + (mark.hollow ? 4 : 0);
    const [start, end] = mark.to ? [plot.at(point.x), plot.at(point.to)] : [plot.at(point.x) - wide / 2, plot.at(point.x) + wide / 2];
    root.append(svg("rect", { class: mark.hollow ? "outline" : `bar ${TONES[mark.tone ?? "first"]}`, x: start, width: Math.max(end - start, 0), y, height: base - y }));
    return { x: (start + end) / 2, y, row: point.row, head: headOf(chart, point.row), near: Infinity, column: mark.y };
  });
}

function drawRanges(root, { points }, { plot }) {
  for (const { x, to, y } of points.filter((point) => typeof point.to === "number")) {
    root.append(svg("line", { class: "join", x1: plot.at(x), x2: plot.at(to), y1: plot.up(y), y2: plot.up(y) }));
  }
  return [];
}

// Three characters of a number above its power of ten, for narrow cells.
function inTwoLines(value) {
  const [digits, power] = value ? value.toExponential(1).split("e") : ["0", "0"];
  return [digits.replace("-", "−"), Number(power) ? `·10${raised(Number(power))}` : ""].filter(Boolean);
}

// The strength and colour of a cell: from a share of 1, or from a number on the scale of the shade.
function strengthOf(panel, values, written) {
  if (!panel.shade) return (value) => [value, null];
  if (panel.shade.scale === "symlog") {
    const most = Math.max(...values.map(Math.abs), panel.shade.threshold);
    const part = (value) => Math.log10(1 + Math.abs(value) / panel.shade.threshold) / Math.log10(1 + most / panel.shade.threshold);
    return (value) => [part(value), value < 0 ? "second" : "first"];
  }
  const scale = makeScale(panel.shade, values);
  const [least, more] = written ? [0.08, 0.5] : [0.18, 0.8]; // keeps written numbers readable
  return (value) => [value > 0 || panel.shade.scale !== "log" ? least + more * scale.place(value) : 0, null];
}

function drawCells(root, { mark, points }, { chart, panel, plot }) {
  const shade = strengthOf(panel, points.map((point) => point.value), mark.written);
  const [across, up] = panel.cell ?? [1, 1];
  const written = (value) => (mark.written ? short(value, 2) : "");
  const longest = Math.max(...points.map(({ value }) => extent(written(value))), 0);
  return points.map(({ row, x, y, value }) => {
    const wide = plot.x.step ? plot.slot : plot.at(x + across / 2) - plot.at(x - across / 2);
    const tall = plot.y.step ? plot.tall : plot.up(y - up / 2) - plot.up(y + up / 2);
    const [here, there] = [plot.at(x), plot.up(y)];
    const gap = wide > 14 && plot.y.step ? 2 : 0;
    const [share, other] = shade(value);
    const cell = svg("rect", { class: `cell${chart.opens ? " opens" : ""}${row[0] === chart.strong ? " pointed" : ""}`, x: here - wide / 2 + gap / 2, y: there - tall / 2, width: wide - gap, height: tall, rx: gap ? 3 : null, "data-row": `${x}->${y}` });
    cell.style.fill = `color-mix(in srgb, var(--${TONES[other ?? mark.tone ?? "first"].replace("tone-", "")}) ${(100 * share).toFixed(0)}%, transparent)`;
    root.append(cell);
    const lines = !mark.written ? [] : longest <= wide - 2 ? [written(value)] : wide >= 5 * TEXT - 4 ? inTwoLines(value) : [];
    lines.forEach((text, place) => root.append(svg("text", { x: here, y: there + 4 + 13 * (place - (lines.length - 1) / 2), "text-anchor": "middle", "pointer-events": "none" }, text)));
    return { x: here, y: there, row, head: headOf(chart, row), near: Math.max(wide, tall), column: mark.value };
  });
}

const SHAPES = { line: drawLines, dot: drawDots, bar: drawBars, range: drawRanges, cell: drawCells };

function headOf(chart, row) {
  return typeof row[0] === "number" ? `${chart.columns[0]} ${number(row[0])}` : row[0];
}

// Draws the panels of a chart below each other, or side by side if there is room.
function drawPanels(chart, root, width, dense) {
  const across = width / (chart.across ?? 1) >= (dense ? DENSELY : BESIDE) ? chart.across ?? 1 : 1;
  const wide = (width - 16 * (across - 1)) / across;
  const spots = [];
  let [top, tallest] = [0, 0];
  chart.panels.forEach((panel, place) => {
    const column = place % across;
    if (!column) [top, tallest] = [top + tallest + (place ? 8 : 0), 0];
    const drawn = drawPanel(chart, panel, wide, dense);
    const left = column * (wide + 16);
    drawn.root.setAttribute("transform", `translate(${left} ${top})`);
    root.append(drawn.root);
    spots.push(...drawn.spots.map((spot) => ({ ...spot, x: spot.x + left, y: spot.y + top })));
    tallest = Math.max(tallest, drawn.height);
  });
  return { height: top + tallest + 2, spots };
}
