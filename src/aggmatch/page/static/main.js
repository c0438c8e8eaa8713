// The label page: lists of images, keys, selection, and what a user does with them.

import { get, newId, post, reachable } from "./api.js";
import { all, count, make, one } from "./dom.js";
import { Grid } from "./grid.js";
import * as panels from "./panels.js";
import { askClass } from "./dialogs.js";
import { guessOf, LEADS, LISTS, NOTHING } from "./texts.js";

const BUSY = 700;
const IDLE = 2500;

let state = null;
let tab = "label";
const chosen = { label: "queue", review: "doubtful" };
let items = [];
let cursor = 0;
let anchor = 0;
let selected = new Set([0]);
let guessing = false;
let several = false;
let single = window.matchMedia("(max-width: 46rem)").matches;
let shownResult = -1;
let loads = 0;

const list = () => chosen[tab] ?? "queue";
const inReview = () => tab === "review";
const inBulk = () => list() === "confident"; // all are selected; keys correct the one under the cursor
const box = one("#grid");
const grid = new Grid(box, drawCell);

// State from the server --------------------------------------------------------------------------------------------

function update(answer) {
  if (!answer?.classes) return;
  state = answer;
  if (answer.changes === null) load(true);
  else {
    for (const item of items) {
      const change = answer.changes[item.id];
      if (change && !item.pending) [item.label, item.mark] = change;
    }
  }
  if (shownResult !== answer.training.version) {
    const first = shownResult < 0;
    shownResult = answer.training.version;
    if (!first) load(true);
  }
  showState();
}

async function poll() {
  if (!document.hidden || state?.training.progress) {
    const answer = await get(`/api/state${state ? `?since=${state.version}` : ""}`).catch((error) => void reachable(error));
    if (answer) {
      reachable(null);
      update(answer);
    }
  }
  setTimeout(poll, state?.training.progress ? BUSY : IDLE);
}

// Read the list; with keep, images that were handled here stay, so that one can go back to them.
async function load(keep = false) {
  const [name, of, turn] = [list(), one("#which select").value, (loads += 1)];
  const answer = await get(`/api/list/${name}${name === "confident" ? `?class=${encodeURIComponent(of)}` : ""}`);
  if (turn !== loads) return; // another list was opened meanwhile
  const here = items[cursor]?.id;
  const known = new Map(items.map((item) => [item.id, item]));
  const fresh = answer.items.map(([id, label, mark, guess, prob, consensus]) => {
    const item = known.get(id) ?? { id }; // the same object: a change that is being saved refers to it
    if (!item.pending) Object.assign(item, { label, mark });
    return Object.assign(item, { guess, prob, consensus, touched: keep && item.touched });
  });
  const ids = new Set(fresh.map((item) => item.id));
  const kept = keep ? items.filter((item) => item.touched && !ids.has(item.id)) : [];
  items = [...kept, ...fresh];
  const place = items.findIndex((item) => item.id === here);
  grid.setLength(items.length);
  select(keep && place >= 0 ? place : kept.length < items.length ? kept.length : 0);
  if (inBulk()) DO.all();
  if (!keep) box.scrollTop = 0;
  showEmpty();
}

function showEmpty() {
  all(".empty", box).forEach((old) => old.remove());
  if (!items.length) box.append(make("p", { className: "empty" }, NOTHING[list()] ?? "This list is empty."));
}

// Drawing ----------------------------------------------------------------------------------------------------------

const showsGuess = () => guessing || inReview();

function drawCell(cell, index) {
  const item = items[index];
  if (!item) return;
  const picture = cell.firstElementChild;
  const address = `/thumbnail/${item.id}`;
  if (picture.getAttribute("src") !== address) {
    cell.classList.remove("failed");
    picture.onerror = () => cell.classList.add("failed");
    picture.src = address;
  }
  cell.setAttribute("aria-selected", selected.has(index));
  cell.classList.toggle("cursor", index === cursor);
  cell.classList.toggle("pending", Boolean(item.pending));
  cell.classList.toggle("done", Boolean(item.touched && list() !== "labeled"));
  all("span", cell).forEach((old) => old.remove());
  const word = item.label ?? item.mark;
  if (word) cell.append(make("span", { className: item.label ? "tag" : "tag mark" }, word));
  if (showsGuess()) cell.append(make("span", { className: "hint" }, guessOf(item, "\n")));
  cell.setAttribute("aria-label", `image ${index + 1}${word ? `, ${word}` : ""}`);
}

function showSingle() {
  one("#single").hidden = !single || !items.length;
  box.hidden = single && items.length > 0;
  one('[data-do="view"] span').textContent = single ? "All images" : "One image";
  const item = items[cursor];
  if (!single || !item) return;
  const picture = one("#single img");
  const address = `/photo/${item.id}`;
  if (picture.getAttribute("src") !== address) picture.src = address;
  const word = item.label ?? item.mark ?? "no label";
  const parts = [make("span", {}, `${cursor + 1} of ${items.length.toLocaleString("en")}`), make("b", {}, item.pending ? `${word} …` : word)];
  if (showsGuess()) parts.push(make("span", {}, guessOf(item, " · ")));
  one("#single figcaption").replaceChildren(...parts);
  for (const next of items.slice(cursor + 1, cursor + 3)) new Image().src = `/photo/${next.id}`;
}

function showState() {
  const { counts, classes, problems, training } = state;
  one("#counts").textContent = `${counts.labeled.toLocaleString("en")} of ${count(counts.images, "image")} labelled`;
  const undo = one('[data-do="undo"]');
  undo.disabled = !state.undo;
  one("span", undo).textContent = state.undo ? ` ${state.undo}` : "";
  showClasses(classes);
  showNotices(problems);
  showTools(training, classes);
  panels.show(state);
  draw();
}

function draw() {
  grid.redraw();
  showSingle();
  const accept = one('[data-do="accept"]');
  const number = [...selected].filter((index) => items[index]?.guess && !(inBulk() && items[index].touched)).length;
  accept.disabled = !number;
  accept.lastChild.textContent = number > 1 ? ` Accept ${number}` : " Accept";
}

function showClasses(classes) {
  const place = one("#classes");
  const stamp = JSON.stringify(classes);
  if (place.dataset.shown === stamp) return;
  place.dataset.shown = stamp;
  place.replaceChildren(
    ...classes.map(({ name, key, count: number }) => {
      const pick = make("button", { type: "button", className: "pick", title: name }, key ? make("kbd", {}, key) : make("i"), make("span", { className: "name" }, name), make("span", { className: "count" }, number));
      pick.addEventListener("click", () => act({ event: "label", class: name }));
      const edit = make("button", { type: "button", className: "edit", title: `Rename or merge ${name}`, "aria-label": `Rename or merge ${name}` }, "✎");
      edit.addEventListener("click", () => rename(name));
      return make("div", { className: "class" }, pick, edit);
    }),
  );
  if (!classes.length) place.append(make("p", { className: "note" }, "There are no classes yet. Make the first one."));
}

function showNotices(problems) {
  const place = one("#notices");
  const stamp = JSON.stringify([problems, state.importable]);
  if (place.dataset.shown === stamp) return;
  place.dataset.shown = stamp;
  const notes = problems.map((text) => make("p", {}, text));
  if (state.importable) {
    const button = make("button", { type: "button" }, "Take them over");
    button.addEventListener("click", async () => update(await post("/api/import")));
    notes.push(make("p", {}, `There are labels already: ${state.importable}.`, button));
  }
  place.replaceChildren(...notes);
}

function showTools(training) {
  const place = one("#lists");
  const names = LISTS[tab] ?? LISTS.label;
  const { counts } = state;
  const numbers = { queue: counts.left, labeled: counts.labeled, unsure: counts.unsure, skipped: counts.skipped, wrong: training.doubts };
  place.replaceChildren(
    ...names.map(([name, title]) => {
      const number = name in numbers ? ` ${numbers[name].toLocaleString("en")}` : "";
      const button = make("button", { type: "button" }, `${title}${number}`);
      button.dataset.list = name;
      if (name === list()) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => openList(name));
      return button;
    }),
  );
  one("#lead").textContent = LEADS[list()] ?? "";
  const which = one("#which");
  which.hidden = list() !== "confident";
  const options = one("select", which);
  if (options.dataset.shown !== JSON.stringify(training.classes)) {
    options.dataset.shown = JSON.stringify(training.classes);
    options.replaceChildren(...training.classes.map((name) => make("option", { value: name }, name)));
  }
  one('[data-do="accept"]').hidden = !inReview();
  one('[data-do="all"]').hidden = !inBulk();
  one('[data-do="several"]').hidden = inBulk();
  one('[data-do="guess"]').hidden = inReview();
  one('[data-do="why"]').hidden = !training.explains;
}

// Selection --------------------------------------------------------------------------------------------------------

function select(index, { extend = false, toggle = false } = {}) {
  cursor = Math.max(0, Math.min(index, items.length - 1));
  if (extend) {
    const [first, end] = [Math.min(anchor, cursor), Math.max(anchor, cursor)];
    selected = new Set(Array.from({ length: end - first + 1 }, (_, k) => first + k));
  } else {
    anchor = cursor;
    if (inBulk() && !toggle) selected = new Set(selected);
    else if (!toggle) selected = new Set([cursor]);
    else if (!selected.delete(cursor)) selected.add(cursor);
  }
  if (!single) grid.show(cursor);
  draw();
}

function targets() {
  if (inBulk()) return items.slice(cursor, cursor + 1);
  return [...selected].sort((a, b) => a - b).filter((index) => index < items.length).map((index) => items[index]);
}

function advance(done) {
  if (inBulk()) return draw();
  const end = Math.max(...done.map((item) => items.indexOf(item)));
  const free = (item) => !item.label && !item.mark;
  let next = list() === "queue" ? items.findIndex((item, index) => index > end && free(item)) : end + 1;
  if (next < 0) next = items.findIndex(free);
  several = false;
  select(next < 0 || next >= items.length ? end : next);
}

// Actions ----------------------------------------------------------------------------------------------------------

async function save(event, touched) {
  const before = touched.map((item) => [item.label, item.mark]);
  for (const item of touched) {
    item.pending = (item.pending ?? 0) + 1;
    item.touched = true;
    item.label = event.class ?? null;
    item.mark = { skip: "skip", "not sure": "not sure" }[event.event] ?? null;
  }
  draw();
  const ids = touched.map((item) => item.id);
  const body = { id: newId(), ...event, ...(ids.length ? { ids } : {}) };
  const answer = await post("/api/event", () => ({ ...body, version: state.version }));
  touched.forEach((item, k) => {
    item.pending -= 1;
    if (answer.error) [item.label, item.mark, item.touched] = [...before[k], false];
  });
  update(answer);
}

function act(event) {
  const done = targets();
  if (!done.length || !state) return;
  if (inBulk()) selected.delete(cursor);
  save(event, done);
  if (!inBulk()) advance(done);
}

async function undo() {
  if (!state?.undo) return;
  const answer = await post("/api/undo", () => ({ id: newId(), version: state.version }));
  const changed = Object.keys(answer.changes ?? {});
  update(answer);
  const index = items.findIndex((item) => changed.includes(item.id));
  for (const item of items) if (changed.includes(item.id)) item.touched = Boolean(item.label ?? item.mark);
  if (index >= 0 && !answer.error) select(index);
}

function accept() {
  const open = inBulk() ? [...selected].map((index) => items[index]).filter((item) => !item.touched) : targets();
  const done = open.filter((item) => item.guess);
  if (!inReview() || !done.length) return;
  const names = new Set(done.map((item) => item.guess));
  for (const name of names) save({ event: "label", class: name }, done.filter((item) => item.guess === name));
  advance(done);
}

async function newClass() {
  const done = targets();
  const found = await askClass("New class", ["Add and label", "Add only"], (name) => (state.classes.some((each) => each.name === name) ? "There is a class of this name already." : ""));
  if (!found) return;
  const known = state.classes.some((each) => each.name === found.name);
  if (!known) await save({ event: "class", name: found.name }, []);
  if (found.choice === "first" && done.length) {
    save({ event: "label", class: found.name }, done);
    advance(done);
  }
}

async function rename(old) {
  const found = await askClass(`Rename ${old}`, ["Rename"], (name) => {
    const other = state.classes.find((each) => each.name === name && name !== old);
    return other ? `Merges ${old} into ${other.name} (${count(other.count, "image")}).` : "Type the name of another class to merge both.";
  }, old);
  if (found && found.name !== old) {
    await save({ event: "rename", from: old, to: found.name }, []);
    load(true);
  }
}

function openList(name) {
  chosen[tab] = name;
  [items, several] = [[], false];
  grid.setLength(0);
  showState();
  load();
}

function openTab(name) {
  tab = name;
  document.body.dataset.view = name;
  for (const button of all("[data-tab]")) {
    if (button.dataset.tab === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  one("#train").hidden = name !== "train";
  one("#use").hidden = name !== "use";
  if (name in LISTS && state) openList(list());
  else if (state) showState();
}

function openSingle(value) {
  single = value;
  draw();
  if (!single) {
    grid.layout();
    grid.show(cursor);
  }
}

const DO = {
  view: () => openSingle(!single),
  guess: () => { guessing = !guessing; one('[data-do="guess"]').setAttribute("aria-pressed", guessing); draw(); },
  several: () => { several = !several; if (several) selected = new Set(); draw(); },
  all: () => { selected = new Set([...items.keys()].filter((index) => !items[index].touched)); draw(); },
  accept,
  help: () => one("#help").showModal(),
  back: () => select(cursor - 1),
  forward: () => select(cursor + 1),
  why: () => items[cursor] && panels.showWhy(items[cursor].id),
  new: newClass,
  unsure: () => act({ event: "not sure" }),
  skip: () => act({ event: "skip" }),
  clear: () => act({ event: "clear" }),
  undo,
};
const KEYS = { v: "view", Enter: "view", g: "guess", a: "accept", w: "why", c: "new", n: "unsure", s: "skip", x: "clear", u: "undo", "?": "help" };
const MOVES = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -grid.columns, ArrowDown: () => grid.columns, PageUp: () => -5 * grid.columns, PageDown: () => 5 * grid.columns };

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, dialog") || one("dialog[open]") || event.altKey) return;
  if (event.ctrlKey || event.metaKey) {
    if (event.key === "z") { event.preventDefault(); undo(); }
    return;
  }
  if (!(tab in LISTS) || !state) return;
  if (event.key === "Enter" && event.target.closest("button, a")) return;
  const named = state.classes.find((each) => each.key === event.key);
  if (event.key in MOVES) select(cursor + (single ? Math.sign(MOVES[event.key]()) : MOVES[event.key]()), { extend: event.shiftKey });
  else if (named) act({ event: "label", class: named.name });
  else if (event.key in KEYS) DO[KEYS[event.key]]();
  else if (event.key === "Escape") openSingle(false);
  else return;
  event.preventDefault();
});

box.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell) return;
  const index = Number(cell.dataset.index);
  if (event.shiftKey) select(index, { extend: true });
  else select(index, { toggle: several || event.ctrlKey || event.metaKey || inBulk() });
});
box.addEventListener("dblclick", (event) => event.target.closest(".cell") && !inBulk() && openSingle(true));
for (const button of all("[data-do]")) button.addEventListener("click", () => { DO[button.dataset.do](); if (button.dataset.do === "several") button.setAttribute("aria-pressed", several); });
for (const button of all("[data-tab]")) button.addEventListener("click", () => openTab(button.dataset.tab));
one("#which select").addEventListener("change", () => openList(list()));
panels.setUp(update);

document.body.dataset.view = tab;
update(await get("/api/state"));
if (!items.length) await load();
draw();
setTimeout(poll, BUSY);
document.body.dataset.ready = "yes";
