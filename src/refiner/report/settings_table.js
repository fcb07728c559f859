/* Copy the settings as JSON. */
for (const copy of document.querySelectorAll(".copy")) {
  const status = copy.querySelector("[role=status]");
  copy.querySelector("button").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copy.dataset.copy);
      status.textContent = "Copied";
    } catch {
      status.textContent = "The browser did not allow copying; select the text instead";
    }
  });
  copy.hidden = false;
}
