// Text and numbers as a reader sees them. Nothing here, or anywhere in this page, makes markup from data.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);

const HIDDEN = /[\u00a0\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u2800\u034f\u180b-\u180f\ufe00-\ufe0f]/u;
const CUT = 20000;

// Characters that move the cursor, turn the reading direction or hide are spelled out: U+202E. So is the blank that looks
// like another one, U+00A0.
export function Text({ of, limit = CUT }) {
  const whole = of === null || of === undefined ? "" : String(of);
  const text = whole.slice(0, limit);
  const parts = [];
  let plain = "";
  for (const char of text) {
    if (char === "\n" || char === "\t" || !HIDDEN.test(char)) {
      plain += char;
      continue;
    }
    if (plain) parts.push(plain);
    plain = "";
    const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(html`<span class="ctl">U+${code}</span>`);
  }
  if (plain) parts.push(plain);
  if (whole.length > limit) parts.push(html`<span class="ctl">… ${whole.length - limit} more characters</span>`);
  return parts;
}

// The same for attributes, where there are no elements.
export function plain(value, limit = 300) {
  const shown = Array.from(String(value ?? "").slice(0, limit), (c) =>
    HIDDEN.test(c) ? `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>` : c,
  );
  return shown.join("");
}

// The address of a rollout in this page. Half a surrogate pair has none.
export const link = (at) => `#r:${encodeURI(at.replace(/\p{Cs}/gu, "\ufffd"))}`;

export const finite = (value) => typeof value === "number" && Number.isFinite(value);

export function number(value, share = false) {
  if (!finite(value)) return "–";
  if (share) return `${(100 * value).toFixed(1).replace("-", "−")}\u202f%`;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
  if (Number.isInteger(value)) return String(value).replace("-", "−");
  if (Math.abs(value) < 0.001) return value.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  const digits = Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toFixed(digits).replace("-", "−");
}

// "1 step", "2 steps".
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

// Steps are stored from 0, as in the addresses of rollouts; whoever reads counts them from 1, as the console does.
export const ordinal = (step) => (finite(step) ? number(step + 1) : "–");

export function signed(value, share = false) {
  if (!finite(value)) return "–";
  const size = share ? (100 * Math.abs(value)).toFixed(1) : number(Math.abs(value));
  return Number(size) === 0 ? size : `${value < 0 ? "−" : "+"}${size}`;
}

// 95 % interval of a share, by Wilson.
export function wilson(hits, all) {
  if (!all) return [null, null];
  const z = 1.96, share = hits / all, middle = share + (z * z) / (2 * all), whole = 1 + (z * z) / all;
  const half = z * Math.sqrt((share * (1 - share)) / all + (z * z) / (4 * all * all));
  return [Math.max(0, (middle - half) / whole), Math.min(1, (middle + half) / whole)];
}

export function clock(seconds) {
  if (!finite(seconds)) return "";
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}
