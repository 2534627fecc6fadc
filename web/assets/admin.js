// What the modules of the dashboard's pages share, and the menu of the page's header.
export * from "./admin-api.js";
export * from "./admin-dom.js";
export * from "./admin-form.js";
export * from "./admin-table.js";

const menu = document.querySelector("button.menu");
if (menu) {
  menu.hidden = false;
  menu.setAttribute("aria-expanded", "false");
  menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true")));
}
