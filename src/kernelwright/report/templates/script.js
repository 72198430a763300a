// What belongs to a step lights up wherever it stands; tables are narrowed; a step that is led to
// opens. The page says all of it without this.
(() => {
  "use strict";
  const tied = [...document.querySelectorAll("[data-steps]")];
  const steps = (element) => element.dataset.steps.split(" ");
  const light = (names) => {
    for (const element of tied) {
      element.classList.toggle("lit", names.length > 0 && steps(element).some((s) => names.includes(s)));
    }
  };
  const under = (event) => event.target.closest("[data-steps]");
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const element = under(event);
      light(element && element.tagName !== "SECTION" ? steps(element) : []);
    });
  }

  const arrive = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", arrive);
  arrive();

  // Wide graphs begin where their inputs are.
  for (const box of document.querySelectorAll(".tall")) {
    const first = box.querySelector("svg .mark");
    if (!first) continue;
    const mark = first.getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    box.scrollLeft = mark.left + mark.width / 2 - frame.left - frame.width / 2;
  }

  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  const all = document.getElementById("open-all");
  all.addEventListener("click", () => {
    const open = all.getAttribute("aria-pressed") !== "true";
    all.setAttribute("aria-pressed", String(open));
    all.textContent = open ? "Close all steps" : "Open all steps";
    for (const card of document.querySelectorAll(".card")) card.open = open;
  });
  for (const input of document.querySelectorAll("[data-filter]")) {
    const rows = [...document.querySelectorAll(`#${input.dataset.filter} tbody tr`)];
    const count = input.closest(".tools").querySelector(".count");
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      const left = rows.filter((row) => !row.hidden).length;
      count.textContent = wanted ? `${left} of ${rows.length} rows` : "";
    });
  }
  const buttons = [...document.querySelectorAll("[data-show]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      for (const table of document.querySelectorAll(".checks")) {
        const rows = [...table.querySelectorAll("tbody tr")];
        for (const row of rows) {
          row.hidden = button.dataset.show !== "all" && row.dataset.state !== button.dataset.show;
        }
        table.parentElement.hidden = rows.every((row) => row.hidden);
      }
    });
  }
})();
