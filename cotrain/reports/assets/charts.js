// A line chart: uPlot with our colours, the healthy range, the shaded gap, bands over seeds, and the schedule under the curve.
import { useEffect, useRef } from "preact/hooks";
import { html, number, plain, clock, finite } from "view/words";

const uPlot = globalThis.uPlot;
const TONES = ["--a", "--b", "--c", "--d", "--e", "--f"];
const HEIGHT = 210;
const STRIP = 6; // pixels of a lane of the schedule
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

export const tone = (at) => TONES[at % TONES.length];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";

function faded(name, alpha) {
  const value = colour(name).replace("#", "");
  const full = value.length === 3 ? Array.from(value, (c) => c + c).join("") : value;
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

// Over how many neighbouring points a curve of so many is averaged; 1: as it is.
export const smoothing = (count) => (count < 24 ? 1 : 2 * Math.round(count / 30) + 3);

// The mean of the values around each one that is there.
export function smoothed(values, width) {
  const half = (width - 1) / 2;
  return values.map((value, at) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, at - half), at + half + 1).filter(finite);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}

// How many of the earlier lines each line hides, as they have the same values.
function hidden(lines) {
  const same = (one, other) => one.values.every((value, at) => value === null || Math.abs(value - other.values[at]) < 1e-9);
  return lines.map((line, at) => lines.slice(0, at).filter((earlier) => same(line, earlier)).length);
}

// lines: [{label, values, tone, truth, share, low, high}]; low and high make a band; gap: [i, j] shades between two lines where
// i is above j; lanes: [{label, tone, x, values}] tells up to which x a policy was trained, and for which share of the time.
// smooth: the values stand thin behind their means over neighbours.
export function Chart({ title, label, note, x, axis, lines, gap, healthy, lanes, range, zero, ticks, smooth, height = HEIGHT }) {
  const place = useRef(null), plot = useRef(null), width = smooth ? smoothing(x.length) : 1;
  const shown = lines.filter((line) => line.values.some((value) => value !== null));
  useEffect(() => {
    if (!place.current || !x.length || !shown.length) return undefined;
    const draw = () => {
      plot.current?.destroy();
      const banded = shown.filter((line) => line.high?.length), raw = width > 1 ? shown : [];
      const options = settings({ width: Math.max(200, place.current.clientWidth), height, axis, shown, gap, healthy, lanes, range, zero, ticks, banded, raw, count: x.length });
      const drawn = width > 1 ? shown.map((line) => smoothed(line.values, width)) : shown.map((line) => line.values);
      plot.current = new uPlot(options, [x, ...banded.flatMap((line) => [line.high, line.low]), ...raw.map((line) => line.values), ...drawn], place.current);
    };
    draw();
    const watcher = new ResizeObserver(() => {
      const wide = place.current?.clientWidth ?? 0;
      if (plot.current && wide && wide !== plot.current.width) plot.current.setSize({ width: wide, height });
    });
    watcher.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    return () => {
      watcher.disconnect();
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [x, axis, JSON.stringify(shown.map((line) => [line.label, line.tone])), ...shown.map((line) => line.values), height, lanes]);
  if (!shown.length) return null;
  return html`<figure class="chart" role="img" aria-label=${plain(`${label ?? (typeof title === "string" ? title : "chart")}: ${shown.map(said).join("; ")}`)}>
    <figcaption>${title}${note ? html` <small>${note}</small>` : null}</figcaption>
    <div ref=${place}></div>
  </figure>`;
}

function said(line) {
  const last = line.values.findLast((value) => value !== null);
  return `${line.label} ${number(last, line.share)}`;
}

function settings({ width, height, axis, shown, gap, healthy, lanes, range, zero, ticks: shownAs, banded, raw, count }) {
  const over = hidden(shown), toneOf = (one) => (one.truth ? "--truth" : one.tone);
  const line = (one, place) => ({
    label: plain(one.label, 60),
    stroke: colour(toneOf(one)),
    width: one.truth ? 2.5 : 1.6,
    dash: over[place] ? [5, 5 + 4 * over[place]] : one.dash ?? (place < TONES.length ? undefined : [2, 3]),
    spanGaps: true,
    points: { show: count < 40, size: 5 },
    value: (plot, value, at) => number(value ?? (plot.cursor.idx === null || plot.cursor.idx === undefined ? plot.data[at].findLast((some) => some !== null) : null), one.share),
  });
  const text = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
  const time = axis === "seconds", strip = STRIP * (lanes?.length ?? 0), behind = 2 * banded.length + raw.length;
  const thin = (one) => ({ label: "", stroke: faded(toneOf(one), 0.3), width: 1, spanGaps: true, points: { show: false } });
  const edge = { label: "", stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
  return {
    width,
    height,
    padding: [10, 12, 0, 0],
    cursor: { sync: { key: "run" }, drag: { x: true, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: { x: { time: false }, y: { range: range ? () => range : (_, low, high) => limits(low, high, shown.every((one) => one.share)) } },
    axes: [
      { ...text, size: 30 + strip, gap: 5 + strip, space: 60, incrs: time ? undefined : WHOLE, values: (_, ticks) => ticks.map((tick) => (shownAs ? (Number.isInteger(tick) ? shownAs(tick) : "") : time ? clock(tick) : short(tick))) },
      { ...text, size: 58, values: (_, ticks) => level(ticks, shown[0].share, zero) },
    ],
    series: [{ label: plain(named(axis)), value: (_, value) => (value === null ? "–" : shownAs ? shownAs(value) : time ? clock(value) : Math.abs(value) >= 1e9 ? value.toExponential(2).replace("e+", "e") : number(value)) }, ...banded.flatMap(() => [edge, edge]), ...raw.map(thin), ...shown.map(line)],
    bands: [
      ...(gap ? [{ series: [gap[0] + 1 + behind, gap[1] + 1 + behind], fill: faded("--gapfill", 0.22), dir: -1 }] : []),
      ...banded.map((one, at) => ({ series: [1 + 2 * at, 2 + 2 * at], fill: faded(one.tone, 0.16) })),
    ],
    hooks: { ready: [(plot) => plot.root.querySelectorAll(".u-legend .u-series").forEach((row, at) => { if (at && at <= behind) row.style.display = "none"; }), last], setCursor: [(plot) => (plot.cursor.idx === null ? last(plot) : undefined)], drawClear: [(plot) => underlay(plot, healthy, zero)], draw: [(plot) => schedule(plot, lanes)] },
  };
}

// A little room around the values; a share stays within 0 and 1, and a flat line gets a range too.
function limits(low, high, share) {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || (share ? 0.05 : 1);
  return share && low >= 0 && high <= 1 ? [Math.max(-0.005, low - room), Math.min(1.005, high + room)] : [low - room, high + room];
}

// Lines with grids of their own on one grid, each within its own range.
export function together(lines) {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const onto = (from, values) => {
    let at = 0;
    return x.map((here) => {
      if (!values.length || here < from[0] || here > from.at(-1)) return null;
      while (from[at + 1] < here) at += 1;
      if (from[at] === here || from.length === 1) return values[at];
      const share = (here - from[at]) / (from[at + 1] - from[at]);
      return values[at] + share * (values[at + 1] - values[at]);
    });
  };
  return [x, lines.map((line) => ({ ...line, values: onto(line.x, line.mean), low: line.low.length ? onto(line.x, line.low) : [], high: line.high.length ? onto(line.x, line.high) : [] }))];
}

const short = (value) =>
  Math.abs(value) >= 1e9 ? value.toExponential(1).replace("e+", "e") : Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : String(value);
export const named = (axis) => (axis === "seconds" ? "time" : axis.startsWith("updates/") ? `updates of ${axis.slice(8)}` : axis === "flops" ? "FLOPs" : axis);

// With no pointer in the chart the legend tells where each line ends.
const last = (plot) => plot.setLegend({ idx: plot.data[0].length - 1 }, false);

// Ticks of one axis with as many digits as tell them apart.
function level(ticks, share, zero) {
  const scale = share ? 100 : 1, near = (digits) => ticks.every((tick) => Math.abs(Number((scale * tick).toFixed(digits)) - scale * tick) < 1e-9 * Math.max(1, Math.abs(scale * tick)));
  const digits = [0, 1, 2, 3, 4, 5].find(near) ?? 6;
  return ticks.map((tick) => {
    const value = share ? 100 * tick : tick, size = Math.abs(value);
    const text = size >= 1e4 ? short(value) : size && size < 1e-4 ? value.toExponential(1) : value.toFixed(digits);
    return `${zero && value > 0 ? "+" : ""}${text.replace("-", "−")}${share && !zero ? "\u202f%" : ""}`;
  });
}

function underlay(plot, healthy, zero) {
  if (zero) {
    const { ctx, bbox } = plot, at = plot.valToPos(0, "y", true);
    ctx.fillStyle = colour("--soft");
    if (at >= bbox.top && at <= bbox.top + bbox.height) ctx.fillRect(bbox.left, at, bbox.width, devicePixelRatio);
  }
  if (!healthy || healthy.every((limit) => limit === null)) return;
  const { ctx, bbox } = plot, { min, max } = plot.scales.y;
  const at = (value) => Math.min(bbox.top + bbox.height, Math.max(bbox.top, plot.valToPos(value, "y", true)));
  const top = at(healthy[1] ?? max), bottom = at(healthy[0] ?? min);
  ctx.fillStyle = faded("--ok", 0.1);
  ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
}

function schedule(plot, lanes) {
  const { ctx, bbox } = plot, unit = devicePixelRatio, { min, max } = plot.scales.x;
  (lanes ?? []).forEach((lane, row) => {
    const { x } = lane;
    ctx.fillStyle = colour(lane.tone);
    lane.values.forEach((value, at) => {
      if (!value || x[at] < min || (at && x[at - 1] > max)) return;
      const before = at ? plot.valToPos(x[at - 1], "x", true) : bbox.left, here = plot.valToPos(x[at], "x", true);
      const left = Math.max(bbox.left, before), right = Math.min(bbox.left + bbox.width, Math.max(here, before + unit));
      ctx.globalAlpha = 0.25 + 0.75 * value;
      if (right > left) ctx.fillRect(left, bbox.top + bbox.height + (3 + row * STRIP) * unit, right - left, 4 * unit);
    });
    ctx.globalAlpha = 1;
  });
}
