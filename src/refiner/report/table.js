/* Sort a table by a click, Enter or Space on a header. The sort is stable; blank cells come last. */
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const letters = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const compare = (column, asText, sign) => (one, other) => {
    const [a, b] = [one.cells[column], other.cells[column]];
    const blank = ("blank" in a.dataset) - ("blank" in b.dataset);
    if (blank || "blank" in a.dataset) return blank;
    if (asText) return sign * letters.compare(a.textContent, b.textContent);
    const [x, y] = [Number(a.dataset.value), Number(b.dataset.value)];
    return x === y ? 0 : x < y ? -sign : sign;
  };
  if (body.rows.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...body.rows].sort(compare(column, head.dataset.sort === "text", down ? -1 : 1)));
    });
  });
}
