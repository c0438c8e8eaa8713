// A grid of many images, of which only the visible ones exist as elements.

import { make } from "./dom.js";

const WANTED = 176;
const GAP = 8;
const SPARE = 2;

export class Grid {
  // box: the scrolling element, whose only child is as high as all rows. draw(cell, index) fills a cell.
  constructor(box, draw) {
    this.box = box;
    this.space = box.firstElementChild;
    this.draw = draw;
    this.length = 0;
    this.cells = new Map();
    this.columns = 1;
    this.side = WANTED;
    box.addEventListener("scroll", () => this.render(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(box);
  }

  setLength(length) {
    this.length = length;
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    this.layout();
  }

  layout() {
    const width = this.box.clientWidth - GAP;
    if (width <= 0) return;
    this.columns = Math.max(2, Math.floor(width / (WANTED + GAP)));
    this.side = Math.floor(width / this.columns) - GAP;
    this.space.style.height = `${Math.ceil(this.length / this.columns) * (this.side + GAP)}px`;
    for (const [index, cell] of this.cells) this.place(cell, index);
    this.render();
  }

  place(cell, index) {
    const step = this.side + GAP;
    cell.style.width = cell.style.height = `${this.side}px`;
    cell.style.transform = `translate(${(index % this.columns) * step + 2}px, ${Math.floor(index / this.columns) * step + 2}px)`;
  }

  render() {
    const step = this.side + GAP;
    const first = Math.max(0, Math.floor(this.box.scrollTop / step) - SPARE) * this.columns;
    const rows = Math.ceil(this.box.clientHeight / step) + 2 * SPARE;
    const end = Math.min(this.length, first + rows * this.columns);
    for (const [index, cell] of this.cells) {
      if (index < first || index >= end) {
        cell.remove();
        this.cells.delete(index);
      }
    }
    for (let index = first; index < end; index += 1) {
      if (!this.cells.has(index)) {
        const cell = make("div", { className: "cell", role: "option" }, make("img", { alt: "", draggable: false, decoding: "async" }));
        cell.dataset.index = index;
        this.cells.set(index, cell);
        this.place(cell, index);
        this.draw(cell, index);
        this.space.append(cell);
      }
    }
  }

  redraw() {
    for (const [index, cell] of this.cells) this.draw(cell, index);
  }

  show(index) {
    const step = this.side + GAP;
    const top = Math.floor(index / this.columns) * step;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + step > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + step - this.box.clientHeight + 4;
    this.render();
  }
}
