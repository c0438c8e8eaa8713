// The tabs Train and Use, and the line that shows what the computer does.

import { get, post } from "./api.js";
import { all, count, make, one, percent } from "./dom.js";

const DRAWING = "http://www.w3.org/2000/svg";

export function setUp(update) {
  one("#train-now").addEventListener("click", async () => update(await post("/api/train")));
  one("#stop").addEventListener("click", async () => update(await post("/api/stop")));
  one("#every").addEventListener("change", async (event) => {
    const every = Number(event.target.value);
    update(await post("/api/every", () => ({ every })));
  });
  one("#sort").addEventListener("click", async () => {
    const [what, how] = [one("#sort-what").value, one("#sort-how").value];
    const answer = await post("/api/sort", () => ({ what, how }));
    update(answer);
    const { said } = answer;
    const gone = said?.missing ? ` ${count(said.missing, "file")} had vanished.` : "";
    one("#sorted").textContent = said ? `${count(said.files, "file")} in ${said.folder}.${gone}` : answer.error;
  });
}

export function show({ training, counts }) {
  const { progress, estimate, history } = training;
  const busy = one("#busy");
  busy.hidden = !progress;
  if (progress) {
    const many = progress.total > 0 ? ` ${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")}` : "";
    const [what, rest] = all("span", busy);
    what.textContent = `${progress.stage}${many}`;
    rest.textContent = [progress.left, progress.wanted ? "then training begins" : ""].filter(Boolean).join("; ");
    const bar = one("progress", busy);
    if (progress.total > 0) Object.assign(bar, { max: progress.total, value: progress.done });
    else bar.removeAttribute("value");
  }
  const trains = progress?.kind === "train";
  one("#train-now").disabled = trains || Boolean(progress?.wanted);
  if (document.activeElement !== one("#every")) one("#every").value = training.every;
  one("#new-labels").textContent = training.trained
    ? `The model learned from ${count(training.labeled, "label")}. New since then: ${Math.max(0, counts.labeled - training.labeled)}.`
    : `There is no model yet. ${count(counts.labeled, "label")} so far.`;
  one("#failure").hidden = !training.failure;
  one("#failure").textContent = training.failure;
  document.body.classList.toggle("untrained", !training.trained);
  one("#sort-what [data-trained]").disabled = !training.trained;
  one("#accuracy").textContent = estimate ? `${estimate.accuracy.toFixed(0)} %` : "–";
  one("#interval").textContent = estimate
    ? `95 % interval: ${estimate.low.toFixed(0)} to ${estimate.high.toFixed(0)} %, ${estimate.tested ? `on ${count(estimate.tested, "test image")}` : "on the images without a label"}, with ${count(estimate.labels, "label")}`
    : training.trained && trains ? "being estimated …" : "";
  const gauge = one(".gauge");
  gauge.hidden = !estimate;
  if (estimate) {
    one("span", gauge).style.left = `${estimate.low}%`;
    one("span", gauge).style.width = `${estimate.high - estimate.low}%`;
    one("b", gauge).style.left = `${estimate.accuracy}%`;
  }
  one("#advice").textContent = training.advice;
  drawCurve(history);
}

function drawCurve(history) {
  const place = one("#curve");
  const stamp = JSON.stringify(history);
  if (place.dataset.shown === stamp) return;
  place.dataset.shown = stamp;
  place.hidden = history.length < 2;
  all("svg", place).forEach((old) => old.remove());
  if (place.hidden) return;
  const [width, height, left, bottom] = [480, 240, 44, 30];
  const shape = (tag, values, text = "") => {
    const element = document.createElementNS(DRAWING, tag);
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };
  const low = Math.min(...history.map((each) => each.low));
  const floor = Math.max(0, Math.floor((low - 5) / 10) * 10);
  const logs = history.map((each) => Math.log(each.labels));
  const [least, most] = [Math.min(...logs), Math.max(...logs)];
  const x = (labels) => left + 16 + ((Math.log(labels) - least) / (most - least || 1)) * (width - left - 40);
  const y = (share) => height - bottom - ((share - floor) / (100 - floor)) * (height - bottom - 12);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Estimated accuracy by number of labels" });
  for (let share = floor; share <= 100; share += (100 - floor) / 4) {
    svg.append(shape("line", { class: "axis", x1: left, x2: width, y1: y(share), y2: y(share) }));
    svg.append(shape("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${Math.round(share)} %`));
  }
  const sorted = [...history].sort((a, b) => a.labels - b.labels);
  svg.append(shape("polyline", { class: "line", points: sorted.map((each) => `${x(each.labels)},${y(each.accuracy)}`).join(" ") }));
  for (const each of sorted) {
    svg.append(shape("line", { class: "bar", x1: x(each.labels), x2: x(each.labels), y1: y(each.low), y2: y(each.high) }));
    svg.append(shape("circle", { cx: x(each.labels), cy: y(each.accuracy), r: 4 }));
    svg.append(shape("text", { x: x(each.labels), y: height - 10, "text-anchor": "middle" }, each.labels));
  }
  place.prepend(svg);
}

export async function showWhy(key) {
  const dialog = one("#why");
  const place = one("div", dialog);
  place.replaceChildren(make("p", {}, "…"));
  if (!dialog.open) dialog.showModal();
  const { why, name, label } = await get(`/api/image/${key}`);
  const parts = [make("p", { className: "note" }, name, label ? ` · your label: ${label}` : "")];
  if (!why) parts.push(make("p", {}, "There is no explanation for this image: no model has seen it yet."));
  else {
    const titles = { model: "The model says", neighbours: "Stored examples say", votes: "Votes of the subsets" };
    const list = make("dl", { className: "votes" });
    for (const [part, shares] of Object.entries(why.shares)) {
      const text = Object.entries(shares).filter(([, share]) => share >= 0.005).map(([name_, share]) => `${name_} ${percent(share)}`);
      list.append(make("div", {}, make("dt", {}, titles[part]), make("dd", {}, text.join(", ") || "nothing")));
    }
    list.append(make("div", {}, make("dt", {}, "Consensus"), make("dd", {}, percent(why.consensus))));
    const examples = make("div", { className: "examples" });
    for (const each of why.examples) {
      const picture = each.id ? make("img", { src: `/thumbnail/${each.id}`, alt: "" }) : "";
      const text = `${percent(each.share)}: ${each.class}${each.given ? " ★" : ""}`;
      examples.append(make("figure", {}, picture, make("figcaption", {}, text)));
    }
    parts.push(list, make("p", { className: "note" }, "The stored examples with most weight, and the class that they hold. ★ marks a label that you gave."), examples);
  }
  place.replaceChildren(...parts);
}
