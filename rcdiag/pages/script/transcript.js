// The reader of sequences: a list, the tokens in colour, a panel for one token, keys, a minimap.
const SHADES = [0.01, 0.1, 0.5, 2];
const FACTOR = Math.log(2);

function shadeOf(value) {
  const size = SHADES.filter((bound) => Math.abs(value) > bound).length;
  return size ? `${value > 0 ? "up" : "down"}${size}` : "";
}

function orderOfSequences(sequences, by) {
  const k3 = (each) => each.log_ratio.reduce((sum, value) => sum + Math.expm1(value) - value, 0);
  const largest = (each) => Math.max(...each.log_ratio.map(Math.abs));
  // At random, and the same at every visit: by the last digits of a product of the row.
  const measures = { sum: (each) => Math.abs(each.log_ratio_sum), token: largest, k3, random: (each) => ((each.row + 1) * 2654435761) % 4294967296 };
  return [...sequences].sort((a, b) => measures[by](b) - measures[by](a));
}

function setUpTranscript(block) {
  const list = block.querySelector("ol");
  const order = block.querySelector(".order");
  const text = block.querySelector(".tokens");
  const panel = block.querySelector(".token");
  const map = block.querySelector(".minimap");
  const legend = block.querySelector(".legend");
  let [score, sequence, spans, at, sums] = [null, null, [], 0, []];

  function showToken(index, keep) {
    spans[at]?.classList.remove("at");
    at = Math.min(Math.max(index, 0), spans.length - 1);
    spans[at].classList.add("at");
    const value = sequence.log_ratio[at];
    const behavior = sequence.behavior_log_probs?.[at];
    const cap = score.corrections.decoupled_token_is?.config.rollout_is_threshold;
    const facts = {
      row: sequence.row,
      position: sequence.positions[at],
      "token id": sequence.token_ids[at],
      ...(behavior === undefined ? {} : {
        [`probability, ${score.behavior}`]: Math.exp(behavior),
        [`probability, ${score.target}`]: Math.exp(behavior + value),
      }),
      "log-ratio": value,
      ratio: Math.exp(value),
      "sum so far": sums[at],
      ...(cap ? { [`weight, truncated at ${cap}`]: Math.min(Math.exp(value), cap) } : {}),
    };
    const shown = sequence.texts ? `“${sequence.texts[at]}”` : `token ${sequence.token_ids[at]}`;
    panel.replaceChildren(
      el("h4", {}, shown),
      el("dl", { class: "facts-list" }, Object.entries(facts).flatMap(([name, fact]) => [el("dt", {}, name), el("dd", {}, number(fact))])),
      el("p", { class: "soft" }, `token ${at + 1} of ${sequence.num_tokens}${sequence.log_ratio.length < sequence.num_tokens ? `, of which ${sequence.log_ratio.length} are stored` : ""}`),
    );
    spans[at].scrollIntoView({ block: "nearest" });
    if (keep) remember(`tokens/${sequence.row}/${sequence.positions[at]}`);
  }

  function drawMap() {
    const width = map.clientWidth || 300;
    const count = sequence.log_ratio.length;
    const most = Math.max(...sequence.log_ratio.map(Math.abs), 1e-9);
    map.setAttribute("viewBox", `0 0 ${width} 22`);
    map.replaceChildren(...sequence.log_ratio.flatMap((value, place) => {
      if (Math.abs(value) < SHADES[0]) return [];
      const height = 10 * Math.sqrt(Math.abs(value) / most);
      return [svg("rect", { class: value > 0 ? "bar first" : "bar second", x: (place / count) * width, width: Math.max(width / count, 1), y: value > 0 ? 11 - height : 11, height })];
    }));
  }

  function open(chosen, position, keep) {
    sequence = chosen;
    let sum = 0;
    sums = sequence.log_ratio.map((value) => { sum += value; return sum; });
    spans = sequence.log_ratio.map((value, place) => {
      const shown = sequence.texts ? sequence.texts[place] : `${sequence.token_ids[place]} `;
      return el("span", { class: shadeOf(value) || null, "data-place": place }, shown);
    });
    text.replaceChildren(...spans);
    [...list.querySelectorAll("button")].forEach((button) => {
      if (button.dataset.row === String(sequence.row)) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
    const sizes = sequence.log_ratio.map(Math.abs);
    const place = position === undefined ? sizes.indexOf(Math.max(...sizes)) : Math.max(sequence.positions.indexOf(position), 0);
    at = 0;
    drawMap();
    showToken(place, keep);
  }

  function fillList() {
    list.replaceChildren(...orderOfSequences(score.worst_sequences, order.value).map((each) => el("li", {},
      el("button", { type: "button", "data-row": each.row, onclick: () => open(each, undefined, true) }, `${each.sample_id ?? `row ${each.row}`} `,
        el("small", {}, `${each.reward === null ? "" : `reward ${number(each.reward)}, `}sum ${number(each.log_ratio_sum)}`)))));
  }

  function next(step, far) {
    if (!far) return showToken(at + step, true);
    for (let place = at + step; place >= 0 && place < spans.length; place += step) {
      if (Math.abs(sequence.log_ratio[place]) > FACTOR) return showToken(place, true);
    }
    return undefined;
  }

  text.addEventListener("click", (event) => {
    const place = event.target.dataset.place;
    if (place !== undefined) showToken(Number(place), true);
  });
  text.addEventListener("pointerover", (event) => {
    const place = event.target.dataset.place;
    if (place !== undefined && event.pointerType === "mouse") showToken(Number(place), false);
  });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    next(step, event.shiftKey);
  });
  map.addEventListener("click", (event) => {
    const box = map.getBoundingClientRect();
    showToken(Math.floor(((event.clientX - box.left) / box.width) * spans.length), true);
  });
  order.addEventListener("change", () => { fillList(); open(orderOfSequences(score.worst_sequences, order.value)[0]); });

  const ready = documentOf("score").then((document_) => {
    score = document_;
    legend.replaceChildren(
      el("span", { class: "up2" }, `likelier under ${score.target}`), " ",
      el("span", { class: "down2" }, `likelier under ${score.behavior}`),
      `: four strengths, from |log-ratio| ${SHADES.join(", ")} nats on. Keys: ← → next token, with Shift the next beyond a factor of 2.`,
    );
    fillList();
    open(orderOfSequences(score.worst_sequences, "sum")[0]);
  });
  openers.token = async (row, position) => {
    await ready;
    const chosen = score.worst_sequences.find((each) => each.row === row);
    if (!chosen) return;
    open(chosen, position, false);
    block.closest("section").scrollIntoView({ block: "start" });
  };
}
