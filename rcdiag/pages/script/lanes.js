// The sixth form of charts: a lane for each name in every panel, and in it a cell for each row: its shade is a share of 1.
function drawLanes(chart, root, width) {
  const names = chart.lanes;
  const panels = [...new Set(columnOf(chart, chart.panel))];
  const longest = Math.max(...names.map((name) => name.length)) * TEXT + 12;
  const stacked = longest > width * 0.35;
  const left = stacked ? 8 : longest;
  const inner = width - left - 10;
  const [line, gap] = stacked ? [40, 18] : [26, 2];
  const spots = [];
  let top = 0;
  for (const panel of panels) {
    const rows = chart.rows.filter((row) => row[chart.columns.indexOf(chart.panel)] === panel);
    const step = inner / rows.length;
    top += 20;
    root.append(svg("text", { class: "strong", x: 0, y: top - 7 }, fitted(panel, width)));
    names.forEach((name, lane) => {
      const y = top + line * lane;
      const place = chart.columns.indexOf(`P(${name})`);
      const label = stacked ? { x: left, y: y + 13 } : { x: left - 10, y: y + line / 2 + 4, "text-anchor": "end" };
      root.append(svg("text", label, fitted(name, stacked ? inner : longest)));
      root.append(svg("rect", { class: "lane", x: left, y: y + gap, width: inner, height: line - gap - 2 }));
      for (const { start, end, share, known: told } of runsOf(rows, place, chart)) {
        if (share > 0) root.append(svg("rect", { class: told ? "dot first" : "dot tone-soft", x: left + start * step, y: y + gap, width: (end - start) * step, height: line - gap - 2, "fill-opacity": share }));
      }
    });
    const bottom = top + line * names.length;
    const places = names.map((name) => chart.columns.indexOf(`P(${name})`));
    const likeliest = (row) => places.reduce((best, place, lane) => (row[place] > row[places[best]] ? lane : best), 0);
    rows.forEach((row, place) => {
      const y = top + line * likeliest(row) + (line + gap - 2) / 2;
      spots.push({ x: left + step * (place + 0.5), y, middle: (top + bottom) / 2, row, head: `row ${row[0]}` });
    });
    const scale = linearScale({ start: 0, end: rows.length - 1 }, [], Math.max(inner / 70, 2));
    for (const tick of scale.ticks.filter(Number.isInteger)) {
      const text = String(rows[tick][0]);
      const half = (text.length * TEXT) / 2;
      root.append(svg("text", { class: "soft", x: Math.min(left + step * (tick + 0.5), width - half), y: bottom + 14, "text-anchor": "middle" }, text));
    }
    root.append(svg("text", { class: "soft", x: left + inner / 2, y: bottom + 30, "text-anchor": "middle" }, chart.x.label));
    top = bottom + 44;
  }
  return { height: top, spots };
}

// Neighbours that look alike are one rectangle.
function runsOf(rows, place, chart) {
  const told = chart.columns.indexOf(chart.told);
  const runs = [];
  rows.forEach((row, at) => {
    const share = Math.round(20 * row[place]) / 20;
    const last = runs.at(-1);
    if (last && last.share === share && last.known === (row[told] === "yes")) last.end = at + 1;
    else runs.push({ start: at, end: at + 1, share, known: row[told] === "yes" });
  });
  return runs;
}
