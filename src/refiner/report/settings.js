/* Copy the settings as JSON. */
for (const copy of document.querySelectorAll(".copy")) {
  const said = copy.querySelector("[role=status]");
  copy.querySelector("button").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copy.dataset.copy);
      said.textContent = "Copied";
    } catch {
      said.textContent = "The browser refuses; select the text instead";
    }
  });
  copy.hidden = false;
}
