/* Open what a link points to or into, and print closed sections open. */
const reveal = (hash) => {
  let target = document.getElementById(hash.slice(1));
  const own = target?.querySelector(":scope > details.folded");
  if (own) own.open = true;
  if (target instanceof HTMLDetailsElement) target.hidden = false;
  for (; target; target = target.parentElement) {
    if (target instanceof HTMLDetailsElement) target.open = true;
  }
};
for (const link of document.querySelectorAll("a[href^='#']")) {
  link.addEventListener("click", () => reveal(link.hash));
}
addEventListener("hashchange", () => reveal(location.hash));
reveal(location.hash);

const closed = new Set();
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details.folded:not([open])")) {
    closed.add(each);
    each.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const each of closed) each.open = false;
  closed.clear();
});
