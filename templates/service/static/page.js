// What plain HTML cannot do; every page works without it.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (button && button.dataset.confirm && !confirm(button.dataset.confirm)) {
    event.preventDefault();
    return;
  }
  // An upload takes a while.
  if (button && event.target.dataset.busy) {
    button.textContent = event.target.dataset.busy;
    button.setAttribute("aria-disabled", "true");
  }
});
// A file may be dropped anywhere on its field, not only on the browser's own button.
for (const field of document.querySelectorAll(".drop")) {
  const input = field.querySelector("input");
  field.addEventListener("dragover", (event) => {
    event.preventDefault();
    field.classList.add("over");
  });
  field.addEventListener("dragleave", () => field.classList.remove("over"));
  field.addEventListener("drop", (event) => {
    event.preventDefault();
    field.classList.remove("over");
    if (event.dataTransfer.files.length) input.files = event.dataTransfer.files;
  });
}
