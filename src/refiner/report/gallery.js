/* Filter by verdict, open or close all groups, and open the group that a link points to. */
for (const tools of document.querySelectorAll(".tools")) {
  const groups = [...tools.parentElement.querySelectorAll(".group")];
  const boxes = [...tools.querySelectorAll("input")];
  const filter = () => {
    const excluded = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    for (const group of groups) {
      const cards = [...group.querySelectorAll(".card")];
      for (const card of cards) card.hidden = excluded.has(card.dataset.verdict);
      group.hidden = cards.length > 0 && cards.every((card) => card.hidden);
    }
  };
  for (const box of boxes) box.addEventListener("change", filter);
  /* Browsers may restore the state of the boxes after a reload. */
  filter();

  const all = tools.querySelector("button");
  const label = () => { all.textContent = groups.every((group) => group.open) ? "Close all" : "Open all"; };
  if (all) {
    all.addEventListener("click", () => {
      const open = groups.some((group) => !group.open);
      for (const group of groups) group.open = open;
    });
    for (const group of groups) group.addEventListener("toggle", label);
    label();
  }
  tools.hidden = false;
}
