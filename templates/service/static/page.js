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
// Parts that change are fetched again when the service says so; while its stream of events is not
// open, every few seconds.
for (const live of document.querySelectorAll("[data-stream]")) {
  let source, waiting;
  const renew = () => {
    const part = document.querySelector(live.dataset.part);
    if (part && !document.hidden) htmx.trigger(part, "news");
  };
  const soon = () => {
    waiting ||= setTimeout(() => {
      waiting = 0;
      renew();
    }, 400);
  };
  // A browser has few connections to one service: a tab that nobody sees gives its own back.
  const follow = () => {
    source?.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource(live.dataset.stream);
    for (const kind of ["news", "state", "phase", "detail", "trial", "log"])
      source.addEventListener(kind, soon);
  };
  follow();
  document.addEventListener("visibilitychange", () => {
    follow();
    renew();
  });
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => event.persisted && follow());
  setInterval(() => {
    if (source?.readyState !== EventSource.OPEN) renew();
  }, 3000);
  // What no event tells: a worker that has stopped answering, a stream that was refused.
  setInterval(() => {
    if (source?.readyState === EventSource.CLOSED) follow();
    renew();
  }, 30000);
}
