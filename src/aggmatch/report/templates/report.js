for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") !== "descending";
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const order = (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true });
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [Number(value(a)), Number(value(b))];
        return Number.isNaN(x) || Number.isNaN(y) ? order(a, b) : x - y;
      });
      table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...(descending ? rows.reverse() : rows));
    });
  });
}
const boxes = document.querySelectorAll(".scroll");
const hint = (box) => {
  const rest = box.scrollWidth - box.clientWidth;
  box.classList.toggle("wide", rest > 1);
  box.classList.toggle("more", rest - box.scrollLeft > 1);
};
const hintAll = () => boxes.forEach(hint);
hintAll();
window.addEventListener("resize", hintAll);
document.addEventListener("toggle", hintAll, true);
document.addEventListener("scroll", (event) => event.target.matches?.(".scroll") && hint(event.target), true);
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
const openTarget = () => {
  const fold = document.getElementById(location.hash.slice(1))?.closest("details");
  if (fold && !fold.open) {
    fold.open = true;
    document.getElementById(location.hash.slice(1)).scrollIntoView();
  }
};
window.addEventListener("hashchange", openTarget);
openTarget();
