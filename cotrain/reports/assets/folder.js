// What a folder holds: studies, comparisons, recipes over seeds, runs. Each line opens one of them.
import { html, Text, number } from "view/words";
import { Changed } from "view/overview";

const KINDS = { study: "study", comparison: "comparison", seeds: "seeds of one recipe", run: "run" };

export function Folder({ places, left_out }) {
  const note = left_out ? html`<p class="note">The first ${places.length} are shown, and ${number(left_out)} are not: start the viewer in a folder inside.</p>` : null;
  return html`${note}<table class="folder"><thead><tr><th>name</th><th>kind</th><th>what</th><th>seed</th><th>steps</th><th>state</th><th>pass@1, before → after</th></tr></thead><tbody>
    ${places.map((one, at) => html`<tr><th scope="row"><a href=${`#open:${at}`}><${Text} of=${one.name} limit=${120} /></a></th><td>${KINDS[one.kind]}</td><td><${Text} of=${one.title} limit=${120} /></td>
      <td>${one.kind === "run" ? number(one.seed) : ""}</td><td>${one.kind === "run" ? number(one.planned) : ""}</td>
      <td>${one.kind === "run" ? (one.ended ? "ended" : "not ended") : one.runs ? `${one.ended} of ${one.runs} runs ended` : ""}</td>
      <td>${one.figure ? html`${number(one.figure.before?.value, true)} → <b>${number(one.figure.after.value, true)}</b> ${one.figure.change ? html`<${Changed} ...${one.figure} />` : null}` : "–"}</td></tr>`)}</tbody></table>`;
}
