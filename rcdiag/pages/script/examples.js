// A click on a bin of a figure lists tokens of it, below the figure.
openers.bin = async (row, spot, chart, root) => {
  const figure = root.closest("figure");
  const score = await documentOf("score");
  const { examples, behavior, target } = score;
  const [kind, label] = binOf(row, spot, chart);
  const places = examples?.by_bin[kind]?.[label] ?? [];
  const stored = new Set(sequencesOf(score).map((each) => each.row));
  const which = kind.startsWith("likelier_") ? `more likely under ${kind === "likelier_target" ? target : behavior}, |log-ratio| ${label} nats` : `${chart.panels.at(-1).x.label} ${label}`;
  const heading = el("h4", { tabindex: "-1" }, places.length ? `${places.length} token${places.length > 1 ? "s" : ""}: ${which}` : `No token is stored: ${which}`);
  const close = el("button", { type: "button", onclick: () => { shown.remove(); root.focus(); } }, "close");
  const about = places.length ? el("p", { class: "soft" }, "The tokens with the largest |log-ratio| in the bin, at most one from each row.") : null;
  const list = el("ol", {}, places.map((place) => exampleItem(examples, place, stored, behavior, target)));
  const shown = el("div", { class: "examples" }, heading, about, list, close);
  figure.querySelector(".examples")?.remove();
  figure.querySelector("figcaption").before(shown);
  heading.focus({ preventScroll: true });
};

// The figure's name and the label of the bin at a point of a chart.
function binOf(row, spot, { bins }) {
  if (!bins.starts) return [bins.of, String(row[0])];
  const place = bins.starts.filter((start) => start <= row[0] * 1.000001).length - 1;
  return [bins.of[spot.column], bins.labels[place]];
}

function exampleItem(examples, place, stored, behavior, target) {
  const [row, position] = [examples.row[place], examples.position[place]];
  const [before, token, after] = examples.texts?.[place] ?? [examples.before[place].join(" "), ` ${examples.token_id[place]} `, examples.after[place].join(" ")];
  const [logProb, ratio] = [examples.behavior_log_prob[place], examples.log_ratio[place]];
  const where = `row ${row}, position ${position}`;
  const link = el("a", { href: `#tokens/${row}/${position}` }, stored.has(row) ? where : `${where}, not on this page: how to get it`);
  return el("li", {},
    el("p", { class: "near" }, shortened(before), el("b", { class: shadeOf(ratio) || null }, shortened(token)), shortened(after)),
    el("p", { class: "soft" }, `log-ratio ${number(ratio)}; ${behavior} ${percent(Math.exp(logProb))}, ${target} ${percent(Math.exp(logProb + ratio))}; `, link));
}
