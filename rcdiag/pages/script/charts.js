// Six forms of charts, each drawn from its own table: curves, bars, scatter, dots, triangle, lanes.
const TONES = { first: "first", second: "second", ink: "tone-ink", soft: "tone-soft" };
const tip = document.getElementById("tip");

const LANE = 14; // height of a line of names of marks

function columnOf(chart, name) {
  const place = chart.columns.indexOf(name);
  return chart.rows.map((row) => row[place]);
}

function linesOf(chart) {
  const lines = [];
  const claimed = new Set((chart.series || []).map((each) => each.only).filter(Boolean));
  for (const series of chart.series || []) {
    const place = (name) => chart.columns.indexOf(name);
    const grouped = series.group !== undefined;
    const xPlace = grouped ? 1 : 0;
    const groups = !grouped ? [null] : [...new Set(columnOf(chart, series.group))].filter((name) => (series.only ? name === series.only : !claimed.has(name)));
    for (const group of groups) {
      const points = chart.rows
        .filter((row) => group === null || row[place(series.group)] === group)
        .map((row) => ({ row, x: row[xPlace], y: row[place(series.y)], low: row[place(series.low)], high: row[place(series.high)] }))
        .filter((point) => typeof point.x === "number" && typeof point.y === "number");
      if (points.length) lines.push({ series, group, points });
    }
  }
  return lines;
}

// The points of a line that have an interval, in runs: nothing is shaded where there is none.
function bandsOf(points) {
  const bands = [[]];
  for (const point of points) {
    if (typeof point.low === "number" && typeof point.high === "number") bands.at(-1).push(point);
    else if (bands.at(-1).length) bands.push([]);
  }
  return bands.filter((band) => band.length);
}

// Where the names of marks stand: beside their lines, and one above the other where they would meet.
function lanesOfMarks(marks, at, width) {
  const ends = [];
  return [...marks].sort(([one], [other]) => one - other).map(([place, label]) => {
    const [here, size] = [at(place), label.length * TEXT + 6];
    const end = here + size > width;
    const [from, to] = end ? [here - size, here] : [here, here + size];
    const free = ends.findIndex((last) => last < from);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = to;
    return { here, label, lane, end };
  });
}

function drawCurves(chart, root, width, dense) {
  const lines = linesOf(chart);
  const height = chart.small || dense ? 150 : 240;
  const points = lines.flatMap((line) => line.points);
  const xs = [...points.map((point) => point.x), ...(chart.xrange || [])];
  const y = makeScale(chart.y, points.flatMap((point) => [point.y, point.low, point.high]));
  const left = widest(y);
  const room = (width - left) / (Math.max(...xs.map((value) => number(value).length), 2) * TEXT + 18);
  const marked = (chart.marks || []).map(([at]) => at).filter((at) => at >= Math.min(...xs) && at <= Math.max(...xs));
  const x = makeScale(chart.x, [...xs, ...marked], chart.whole ? Math.min(Math.max(room, 2), 8) : 4);
  if (chart.whole) x.ticks = x.ticks.filter(Number.isInteger);
  const marks = lanesOfMarks((chart.marks || []).filter(([place]) => marked.includes(place)), (value) => left + x.place(value) * (width - left - 10), width);
  const strip = marks.length ? LANE * (1 + Math.max(...marks.map(({ lane }) => lane))) : 0; // of their names, above the plot
  const box = { left, top: 26 + strip, width: width - left - 10, height, right: 10 };
  const { at, up } = frame(root, box, x, y, chart.x, chart.y, 14);
  if (chart.zero) root.append(svg("line", { class: "zero", x1: left, x2: left + box.width, y1: up(0), y2: up(0) }));
  for (const { here, label, lane, end } of marks) {
    const top = box.top - LANE * lane;
    root.append(svg("line", { class: "markline", x1: here, x2: here, y1: top - LANE + 3, y2: box.top + height }));
    root.append(svg("text", { class: "soft", x: here + (end ? -4 : 4), y: top - 3, "text-anchor": end ? "end" : "start" }, label));
  }
  const spots = [];
  for (const { series, group, points: some } of lines) {
    const tone = TONES[series.tone || "first"];
    for (const band of bandsOf(some)) {
      const path = [...band.map((p) => [p.x, p.high]), ...[...band].reverse().map((p) => [p.x, p.low])];
      if (band.length > 1) root.append(svg("path", { class: `area ${tone}`, d: `M${path.map(([a, b]) => `${at(a).toFixed(1)} ${up(b).toFixed(1)}`).join("L")}Z` }));
      else root.append(svg("line", { class: `error-bar ${tone}`, "stroke-opacity": 0.4, x1: at(band[0].x), x2: at(band[0].x), y1: up(band[0].low), y2: up(band[0].high) }));
    }
    if (!series.dots) {
      const d = `M${some.map((p) => `${at(p.x).toFixed(1)} ${up(p.y).toFixed(1)}`).join("L")}`;
      root.append(svg("path", { class: `series ${tone}${series.dashed ? " dashed" : ""}${series.group && !series.only && chart.quiet ? " thin" : ""}`, d }));
    }
    for (const point of some) {
      const few = some.length < 16 && !chart.quiet;
      if (series.dots || few) root.append(svg("circle", { class: `dot ${tone}`, cx: at(point.x), cy: up(point.y), r: series.dots ? 4 : 3 }));
      spots.push({ x: at(point.x), y: up(point.y), row: point.row, head: group ?? series.label, series: series.y, opens: chart.opens });
    }
  }
  return { height: box.top + height + 40, spots };
}

function drawBars(chart, root, width) {
  const bars = columnOf(chart, chart.bar);
  const outlines = columnOf(chart, chart.outline);
  const [size, low, high] = chart.dots.map((name) => columnOf(chart, name));
  const labels = chart.rows.map((row) => String(row[0]));
  const share = makeScale({ ...chart.y }, [...bars, ...outlines]);
  const rms = makeScale({ label: "", start: 0 }, [...size, ...high]);
  const left = Math.max(widest(share), widest(rms));
  const inner = width - left - 10;
  const step = inner / labels.length;
  const across = { ticks: [], place: () => 0, text: String };
  const upper = { left, top: 26, width: inner, height: 110, right: 10 };
  const lower = { left, top: 180, width: inner, height: 120, right: 10 };
  const top = frame(root, upper, across, rms, { label: "" }, { label: `${chart.dots[0]} (nats), 95% interval` });
  const bottom = frame(root, lower, across, share, { label: "" }, { label: "share of squares (filled), tokens (outline)" });
  const spots = [];
  labels.forEach((label, place) => {
    const x = left + step * (place + 0.5);
    const wide = Math.min(step * 0.74, 70);
    const base = lower.top + lower.height;
    const bar = bottom.up(Number.isFinite(bars[place]) ? bars[place] : 0);
    root.append(svg("rect", { class: "bar first", x: x - wide / 2, width: wide, y: bar, height: base - bar }));
    const line = bottom.up(Number.isFinite(outlines[place]) ? outlines[place] : 0);
    root.append(svg("rect", { class: "outline", x: x - wide / 2 - 2, width: wide + 4, y: line, height: base - line }));
    if (typeof size[place] === "number") {
      if (typeof low[place] === "number" && typeof high[place] === "number") root.append(svg("line", { class: "error-bar first", x1: x, x2: x, y1: top.up(low[place]), y2: top.up(high[place]) }));
      root.append(svg("circle", { class: "dot first", cx: x, cy: top.up(size[place]), r: 4 }));
    }
    spots.push({ x, y: typeof size[place] === "number" ? top.up(size[place]) : bar, row: chart.rows[place], head: label, opens: chart.opens });
  });
  const base = lower.top + lower.height;
  const longest = Math.max(...labels.map((label) => label.length)) * TEXT;
  const lanes = Math.ceil((longest + 8) / step);
  const slanted = lanes > 3;
  labels.forEach((label, place) => {
    const x = left + step * (place + 0.5);
    if (slanted && place % Math.ceil(lanes / 3) !== 0) return;
    const y = base + 16 + 13 * ((slanted ? Math.floor(place / Math.ceil(lanes / 3)) : place) % Math.min(lanes, 3));
    const half = (label.length * TEXT) / 2;
    root.append(svg("text", { class: "soft", x: Math.min(Math.max(x, half), width - half), y, "text-anchor": "middle" }, label));
  });
  const down = base + 16 + 13 * Math.min(lanes, 3) + 4;
  root.append(svg("text", { class: "soft", x: left + inner / 2, y: down, "text-anchor": "middle" }, fitted(chart.x.label, inner)));
  return { height: down + 10, spots };
}

function drawScatter(chart, root, width, dense) {
  const [across, upward] = chart.at.map((name) => columnOf(chart, name));
  const x = makeScale(chart.x, across);
  const y = makeScale(chart.y, upward);
  const left = widest(y);
  const box = { left, top: 26, width: width - left - 16, height: dense ? 190 : 270, right: 16 };
  const { at, up } = frame(root, box, x, y, chart.x, chart.y);
  const spots = [];
  chart.rows.forEach((row, place) => {
    if (typeof across[place] !== "number" || typeof upward[place] !== "number") return;
    const strong = row[0] === chart.emphasis;
    const spot = { x: at(across[place]), y: up(upward[place]), row, head: row[0], opens: chart.opens };
    root.append(svg("circle", { class: `dot ${strong ? "second" : "first"}${chart.opens ? " opens" : ""}`, cx: spot.x, cy: spot.y, r: strong ? 6.5 : 4.5, "fill-opacity": strong ? 1 : 0.75, "data-row": row[0] }));
    if (strong) root.append(svg("text", { class: "strong", x: spot.x + (spot.x > width * 0.6 ? -10 : 10), y: spot.y - 8, "text-anchor": spot.x > width * 0.6 ? "end" : "start" }, row[0]));
    spots.push(spot);
  });
  return { height: box.top + box.height + 40, spots };
}

function drawDots(chart, root, width, dense) {
  const names = chart.rows.map((row) => String(row[0]));
  const longest = Math.max(...names.map((name) => name.length)) * TEXT + 12;
  const stacked = width < 520 || longest > width * 0.45;
  const left = stacked ? 8 : longest;
  const parts = (chart.series || []).filter((series) => known(columnOf(chart, series.y)).length).map((series) => ({ series, values: columnOf(chart, series.y), low: series.low ? columnOf(chart, series.low) : [], high: series.high ? columnOf(chart, series.high) : [] }));
  const x = makeScale(chart.x, [...parts.flatMap((part) => [...part.values, ...part.low, ...part.high]), ...(chart.floor || []).slice(0, 2)], Math.max((width - left) / 120, 3));
  // Two dots of a row stand a little above and below its middle.
  const apart = chart.joined || parts.length < 2 ? 0 : 7;
  const line = stacked ? 36 + apart - (dense ? 8 : 0) : 24 - (dense ? 8 : 0);
  const box = { left, top: chart.floor ? 18 : 6, width: width - left - 14, height: names.length * line, right: 14 };
  const none = { ticks: [], place: () => 0, text: String };
  const { at } = frame(root, box, x, none, chart.x, { label: "" });
  if (chart.floor) {
    const [start, end, label] = chart.floor;
    root.append(svg("rect", { class: "floor", x: at(start), width: Math.max(at(end) - at(start), 2), y: box.top, height: box.height }));
    root.append(svg("text", { class: "soft", x: Math.min(at(start), width - label.length * TEXT), y: box.top - 5 }, label));
  }
  if (chart.zero) root.append(svg("line", { class: "zero", x1: at(0), x2: at(0), y1: box.top, y2: box.top + box.height }));
  const spots = [];
  names.forEach((name, place) => {
    const y = box.top + line * (place + (stacked ? 0.72 : 0.5));
    const strong = name === chart.emphasis;
    const faint = (chart.pale || []).includes(name);
    const group = svg("g", { class: faint ? "faint" : null });
    const label = stacked ? { x: left, y: y - 10 - apart / 2 } : { x: left - 10, y: y + 4, "text-anchor": "end" };
    group.append(svg("text", { class: strong ? "strong over" : "over", ...label }, fitted(name, stacked ? width - 10 : width * 0.5)));
    const here = parts.map((part) => part.values[place]).filter((value) => typeof value === "number");
    if (chart.joined && here.length > 1) group.append(svg("line", { class: "join", x1: at(here[0]), x2: at(here[1]), y1: y, y2: y }));
    parts.forEach(({ series, values, low, high }, layer) => {
      const value = values[place];
      if (typeof value !== "number") return;
      const tone = strong && layer === 0 && parts.length === 1 ? "second" : TONES[series.tone || "first"];
      const shift = (layer - (parts.length - 1) / 2) * apart;
      if (typeof low[place] === "number" || typeof high[place] === "number") {
        const [start, end] = [low[place] ?? value, high[place] ?? value].map(at);
        group.append(svg("line", { class: `error-bar ${tone}`, x1: start, x2: end, y1: y + shift, y2: y + shift }));
        // An interval that reaches 0 has no left end on a logarithmic axis.
        if (chart.x.scale === "log" && low[place] <= 0) group.append(svg("path", { class: `dot ${tone}`, d: `M${start - 6} ${y + shift}l6 -4v8z` }));
      }
      group.append(svg("circle", { class: `dot ${tone}${chart.opens ? " opens" : ""}`, cx: at(value), cy: y + shift, r: strong ? 5.5 : 4 }));
      spots.push({ x: at(value), y: y + shift, row: chart.rows[place], head: name, opens: chart.opens });
    });
    root.append(group);
  });
  return { height: box.top + box.height + 40, spots };
}

// Three letters of a number above its power of ten, for cells that are too narrow for all of it.
function inTwoLines(value) {
  if (!value || typeof value !== "number") return [value === 0 ? "0" : MISSING, ""];
  const [digits, power] = value.toExponential(1).split("e");
  return [digits.replace("-", "−"), Number(power) ? `·10${raised(Number(power))}` : ""];
}

function drawTriangle(chart, root, width) {
  const names = chart.names;
  const last = Math.min(names.at(-1).length * TEXT + 10, width * 0.4);
  const room = Math.min((width - last) / Math.max(names.length - 1, 1), 78);
  const texts = chart.rows.map((row) => (row[2] === null ? MISSING : short(row[2], 2)));
  // Of very many policies the cells on a telephone are too small for numbers: those are below.
  const stacked = Math.max(...texts.map((text) => text.length)) * TEXT > room - 2;
  const size = Math.max(room, stacked ? 8 : 26);
  const written = !stacked || size >= 5 * TEXT - 4;
  const line = stacked ? (written ? 34 : 16) : Math.min(Math.max(size * 0.6, 26), 38);
  const values = known(columnOf(chart, "k2")).filter((value) => value > 0);
  const scale = logScale({ scale: "log" }, values);
  const spots = [];
  names.forEach((name, place) => {
    const y = line * place + line / 2;
    root.append(svg("text", { class: "strong", x: size * place + 6, y: y + 4 }, fitted(name, width - size * place - 6)));
  });
  for (const row of chart.rows) {
    const [first, second, value] = row;
    const x = names.indexOf(first) * size;
    const y = names.indexOf(second) * line;
    const share = typeof value === "number" && value > 0 ? 8 + 44 * scale.place(value) : 0;
    const cell = svg("rect", { class: chart.opens ? "opens cell" : "cell", x: x + 1, y: y + 1, width: size - 2, height: line - 2, rx: 3, "data-row": `${first}->${second}` });
    cell.style.fill = `color-mix(in srgb, var(--first) ${share.toFixed(0)}%, var(--paper))`;
    root.append(cell);
    const lines = !written ? [] : stacked ? inTwoLines(value).filter(Boolean) : [texts[chart.rows.indexOf(row)]];
    lines.forEach((text, at) => root.append(svg("text", { x: x + size / 2, y: y + line / 2 + 4 + 13 * (at - (lines.length - 1) / 2), "text-anchor": "middle", "pointer-events": "none" }, text)));
    spots.push({ x: x + size / 2, y: y + line / 2, row, head: `${first} and ${second}`, opens: chart.opens, near: Math.max(size, line) });
  }
  return { height: line * names.length + 6, spots };
}

const FORMS = { curves: drawCurves, bars: drawBars, scatter: drawScatter, dots: drawDots, triangle: drawTriangle, lanes: drawLanes };

// What a click on a spot opens: other parts of the script add their functions here.
const openers = {};

// The mark of a series is what is drawn of it: a line, a dashed one, or a dot; none without a point.
function keyOf(chart) {
  const all = (chart.series || []).filter((each) => !(each.group && !each.only && !chart.quiet && chart.series.length === 1));
  if (all.length < 2) return null;
  const drawn = new Set(linesOf(chart).map((line) => line.series));
  const shown = (each) => (chart.form === "curves" ? drawn.has(each) : known(columnOf(chart, each.y)).length > 0);
  const entries = []; // neighbours of one look share an entry
  for (const { tone = "first", label, dashed, dots } of all.filter(shown)) {
    const mark = dots || chart.form === "dots" ? "dot-mark" : dashed ? "dash-mark" : "";
    const last = entries.at(-1);
    if (last?.tone === tone && last.mark === mark) last.label += `, ${label}`;
    else entries.push({ tone, mark, label });
  }
  return el("div", { class: "key" }, entries.map(({ tone, mark, label }) => el("span", { class: TONES[tone] }, el("i", { class: mark || null }), label)));
}

function drawChart(chart, place, given) {
  const width = given || place.clientWidth;
  if (!width) return;
  const root = svg("svg", { width, class: chart.opens ? "opens" : null, role: "img", tabindex: "0", "aria-label": place.getAttribute("aria-label") || "" });
  const { height, spots } = FORMS[chart.form](chart, root, width, Boolean(given));
  root.setAttribute("height", height);
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ring = svg("circle", { class: "ring", r: 7, visibility: "hidden", "pointer-events": "none" });
  root.append(ring);
  place.replaceChildren(...[keyOf(chart), root].filter(Boolean));
  listen(chart, root, ring, spots);
}

function listen(chart, root, ring, spots) {
  let current = -1;
  const show = (index, speak) => {
    current = index;
    const spot = spots[index];
    ring.setAttribute("cx", spot.x);
    ring.setAttribute("cy", spot.y);
    ring.setAttribute("visibility", "visible");
    const text = [spot.head, ...chart.columns.map((name, place) => [name, spot.row[place]])
      .filter(([, value]) => value !== null && value !== "" && value !== spot.head)
      .map(([name, value]) => `${name}: ${number(value)}`)].join("\n");
    tip.textContent = seen(text);
    tip.hidden = false;
    const frameBox = root.getBoundingClientRect();
    const x = frameBox.left + spot.x;
    const y = frameBox.top + spot.y;
    tip.style.left = `${Math.max(Math.min(x + 14, innerWidth - tip.offsetWidth - 8), 8)}px`;
    tip.style.top = `${y + 16 + tip.offsetHeight > innerHeight ? Math.max(y - tip.offsetHeight - 14, 4) : y + 16}px`;
    if (speak) say(text);
  };
  const hide = () => {
    tip.hidden = true;
    ring.setAttribute("visibility", "hidden");
  };
  const nearest = (event) => {
    const frameBox = root.getBoundingClientRect();
    const [x, y] = [event.clientX - frameBox.left, event.clientY - frameBox.top];
    const away = spots.map((spot) => Math.hypot(spot.x - x, ((spot.middle ?? spot.y) - y) * (chart.form === "curves" ? 0.5 : 1)));
    const index = away.indexOf(Math.min(...away));
    const reach = ["bars", "lanes"].includes(chart.form) ? Infinity : spots[index]?.near ?? 45;
    return index >= 0 && away[index] < reach ? index : -1;
  };
  const open = (index) => {
    const spot = spots[index];
    if (spot && spot.opens && openers[spot.opens]) {
      hide();
      openers[spot.opens](spot.row, spot, chart, root);
    }
  };
  root.addEventListener("pointermove", (event) => {
    const index = nearest(event);
    if (index >= 0) show(index, false);
    else hide();
  });
  // A finger that is lifted leaves the chart: what it touched stays until something else is touched.
  root.addEventListener("pointerdown", (event) => {
    const index = event.pointerType === "mouse" ? -1 : nearest(event);
    if (index >= 0) show(index, false);
  });
  root.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  root.addEventListener("pointercancel", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("click", (event) => open(nearest(event)));
  root.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key in moves && spots.length) {
      event.preventDefault();
      show((current + moves[event.key] + spots.length) % spots.length, true);
    } else if (event.key === "Enter" && current >= 0) open(current);
    else if (event.key === "Escape") hide();
  });
}

function separated(chart) {
  const cell = (value) => (value === null ? "" : String(value).replaceAll("\t", " "));
  return [chart.columns, ...chart.rows].map((row) => row.map(cell).join("\t")).join("\n");
}

function valuesTable(chart, title) {
  const head = el("tr", {}, chart.columns.map((name, place) => el("th", { scope: "col", class: typeof chart.rows[0]?.[place] === "number" ? "n" : null }, name)));
  const rows = chart.rows.map((row) => el("tr", {}, row.map((value, place) => el(place ? "td" : "th", { scope: place ? null : "row", class: typeof value === "number" ? "n" : null }, value === null ? "" : number(value)))));
  return el("div", { class: "values wide", tabindex: "0", role: "region", "aria-label": `Values of ${title}` }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
}

// A chart is drawn once its place has a width, and again when a window is made wider or narrower.
function drawFitting(chart, place) {
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== width) {
      width = place.clientWidth;
      drawChart(chart, place);
    }
  }).observe(place);
}

// The numbers of a chart: as a table below its buttons, and to copy.
function toolsOf(chart, title) {
  let values = null;
  const table = el("button", { type: "button", "aria-expanded": "false", onclick: () => {
    if (values) { values.remove(); values = null; } else { values = valuesTable(chart, title); tools.after(values); }
    table.setAttribute("aria-expanded", String(values !== null));
  } }, "values");
  const copy = el("button", { type: "button", onclick: () => copyText(separated(chart), copy) }, "copy data");
  const tools = el("div", { class: "tools" }, table, copy);
  return tools;
}

function setUpFigure(figure) {
  const chart = page.figures[figure.dataset.figure];
  if (!chart) return;
  const place = figure.querySelector(".drawing");
  const title = figure.querySelector("h4").textContent;
  place.setAttribute("aria-label", `${title}. ${figure.querySelector("figcaption").textContent} Arrow keys go from point to point.`);
  place.setAttribute("role", "group");
  drawFitting(chart, place);
  figure.append(toolsOf(chart, title));
}

// A picker shows one figure of its group at a time.
function setUpPicker(group) {
  const figures = [...group.querySelectorAll("figure")];
  if (figures.length < 2) return;
  const select = el("select", { onchange: () => figures.forEach((figure, place) => { figure.hidden = place !== select.selectedIndex; }) },
    figures.map((figure) => el("option", {}, figure.querySelector("h4").textContent.replace(`${group.dataset.picker} `, ""))));
  figures.forEach((figure, place) => { figure.hidden = place !== 0; });
  group.prepend(el("label", { class: "picker" }, `${group.dataset.picker} `, select));
}
