// Figures of the page: chart, legend, numbers, and interaction by mouse, touch and keyboard.
const tip = document.getElementById("tip");

// Functions for a click on a spot, by the chart's `opens`; other parts of the script add theirs.
const openers = {};

// Legend entries look like their marks; marks without a label have none.
function keyOf(chart) {
  const named = chart.panels.flatMap((panel) => panel.marks.filter((mark) => mark.label).map((mark) => ({ mark, panel })));
  const drawn = named.filter(({ mark, panel }) => layerOf(chart, panel, mark).points.length);
  if (!drawn.length) return null;
  const looks = { line: "", dot: "dot-mark", bar: "bar-mark", range: "", cell: "bar-mark" };
  const entries = new Map();
  for (const { mark: { shape, tone = "first", dashed, hollow, label } } of drawn) entries.set(label, { tone: TONES[tone], look: dashed ? "dash-mark" : `${looks[shape]}${hollow ? " hollow" : ""}` });
  return el("div", { class: "key" }, [...entries].map(([label, { tone, look }]) => el("span", { class: tone }, el("i", { class: look || null }), label)));
}

function drawChart(chart, place, given) {
  const width = given || place.clientWidth;
  if (!width) return;
  const root = svg("svg", { width, class: chart.opens ? "opens" : null, role: "img", tabindex: "0", "aria-label": place.getAttribute("aria-label") || "" });
  const { height, spots } = drawPanels(chart, root, width, Boolean(given));
  root.setAttribute("height", height);
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ring = svg("circle", { class: "ring", r: 7, visibility: "hidden", "pointer-events": "none" });
  root.append(ring);
  place.replaceChildren(...[keyOf(chart), root].filter(Boolean));
  listen(chart, root, ring, spots);
}

function listen(chart, root, ring, spots) {
  // The keyboard visits each row of a mark once, even if it is drawn several times.
  const heads = new Map(spots.map(({ row }) => [row, new Set()]));
  const stops = spots.filter(({ row, head }) => heads.get(row).size !== heads.get(row).add(head).size);
  let current = null;
  const show = (spot, speak) => {
    current = spot;
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
    const away = spots.map((spot) => Math.hypot(spot.x - x, (spot.y - y) * (spot.flat ?? 1)));
    const index = away.indexOf(Math.min(...away));
    return index >= 0 && away[index] < (spots[index].near ?? 45) ? spots[index] : null;
  };
  const open = (spot) => {
    if (spot && openers[chart.opens]) {
      hide();
      openers[chart.opens](spot.row, spot, chart, root);
    }
  };
  root.addEventListener("pointermove", (event) => {
    const spot = nearest(event);
    if (spot) show(spot, false);
    else hide();
  });
  // A lifted finger leaves the chart, but the touched spot stays selected until another touch.
  root.addEventListener("pointerdown", (event) => {
    const spot = event.pointerType === "mouse" ? null : nearest(event);
    if (spot) show(spot, false);
  });
  root.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  root.addEventListener("pointercancel", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("click", (event) => open(nearest(event)));
  root.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key in moves && stops.length) {
      event.preventDefault();
      const here = stops.findIndex(({ row, head }) => row === current?.row && head === current?.head);
      show(stops[(here + moves[event.key] + stops.length) % stops.length], true);
    } else if (event.key === "Enter" && current) open(current);
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

// A chart is drawn once its element has a width, and again when the width changes.
function drawFitting(chart, place) {
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== width) {
      width = place.clientWidth;
      drawChart(chart, place);
    }
  }).observe(place);
}

// The numbers of a chart: a table below its buttons, and copying.
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
