// The dialog that asks for the name of a class.

import { all, one } from "./dom.js";

// Returns the name and which button was pressed, "first" or "second"; null if the user cancelled.
export function askClass(title, buttons, note, name = "") {
  const dialog = one("#class-dialog");
  const input = one("input", dialog);
  one("h2", dialog).textContent = title;
  all("button[value=first], button[value=second]", dialog).forEach((button, k) => {
    button.hidden = k >= buttons.length;
    button.textContent = buttons[k] ?? "";
  });
  const explain = () => { one(".note", dialog).textContent = note(input.value.trim().normalize("NFC")); };
  input.value = name;
  input.oninput = explain;
  explain();
  one("button[value=cancel]", dialog).onclick = () => dialog.close("cancel");
  dialog.returnValue = "cancel";
  dialog.showModal();
  input.select();
  return new Promise((done) => {
    dialog.onclose = () => {
      const found = input.value.trim().normalize("NFC");
      done(found && dialog.returnValue !== "cancel" ? { name: found, choice: dialog.returnValue } : null);
    };
  });
}
