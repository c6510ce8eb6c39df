// A line chart: uPlot with our colours, the healthy range, the shaded gap and the schedule on its upper edge.
import { useEffect, useRef } from "preact/hooks";
import { html, number, plain, clock } from "view/words";

const uPlot = globalThis.uPlot;
const TONES = ["--a", "--b", "--c", "--d", "--e", "--f"];
const HEIGHT = 210;
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

export const tone = (at) => TONES[at % TONES.length];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";

function faded(name, alpha) {
  const value = colour(name).replace("#", "");
  const full = value.length === 3 ? Array.from(value, (c) => c + c).join("") : value;
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

// lines: [{label, values, tone, truth, share}]; gap: [i, j] shades between two lines where i is above j;
// lanes: [{label, tone, values}] tells at which points a policy was trained.
export function Chart({ title, note, x, axis, lines, gap, healthy, lanes, range, height = HEIGHT }) {
  const place = useRef(null), plot = useRef(null);
  const shown = lines.filter((line) => line.values.some((value) => value !== null));
  useEffect(() => {
    if (!place.current || !x.length || !shown.length) return undefined;
    const draw = () => {
      plot.current?.destroy();
      const width = Math.max(200, place.current.clientWidth);
      const options = settings({ width, height, axis, shown, gap, healthy, lanes, range, count: x.length });
      plot.current = new uPlot(options, [x, ...shown.map((line) => line.values)], place.current);
    };
    draw();
    const watcher = new ResizeObserver(() => {
      const width = place.current?.clientWidth ?? 0;
      if (plot.current && width && width !== plot.current.width) plot.current.setSize({ width, height });
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
  }, [x, axis, JSON.stringify(shown.map((line) => [line.label, line.tone])), ...shown.map((line) => line.values), height]);
  if (!shown.length) return null;
  return html`<figure class="chart" role="img" aria-label=${plain(`${title}: ${shown.map(said).join("; ")}`)}>
    <figcaption>${title}${note ? html` <small>${note}</small>` : null}</figcaption>
    <div ref=${place}></div>
  </figure>`;
}

function said(line) {
  const last = line.values.findLast((value) => value !== null);
  return `${line.label} ${number(last, line.share)}`;
}

function settings({ width, height, axis, shown, gap, healthy, lanes, range, count }) {
  const line = (one) => ({
    label: plain(one.label, 60),
    stroke: colour(one.truth ? "--truth" : one.tone),
    width: one.truth ? 2.5 : 1.6,
    dash: one.dash,
    spanGaps: true,
    points: { show: count < 40, size: 5 },
    value: (_, value) => number(value, one.share),
  });
  const text = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
  const time = axis === "seconds";
  return {
    width,
    height,
    padding: [12 + 6 * (lanes?.length ?? 0), 10, 0, 0],
    cursor: { sync: { key: "run" }, drag: { x: true, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: { x: { time: false }, y: { range: range ? () => range : (_, low, high) => limits(low, high, shown.every((one) => one.share)) } },
    axes: [
      { ...text, size: 30, incrs: time ? undefined : WHOLE, values: (_, ticks) => ticks.map((tick) => (time ? clock(tick) : short(tick))) },
      { ...text, size: 52, values: (_, ticks) => ticks.map((tick) => number(tick, shown[0].share)) },
    ],
    series: [{ label: plain(named(axis)), value: (_, value) => (time ? clock(value) : number(value)) }, ...shown.map(line)],
    bands: gap ? [{ series: [gap[0] + 1, gap[1] + 1], fill: faded("--gapfill", 0.22), dir: -1 }] : [],
    hooks: { drawClear: [(plot) => underlay(plot, healthy)], draw: [(plot) => schedule(plot, lanes)] },
  };
}

// A little room around the values; a share stays within 0 and 1, and a flat line gets a range too.
function limits(low, high, share) {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || (share ? 0.05 : 1);
  return share && low >= 0 && high <= 1 ? [Math.max(-0.005, low - room), Math.min(1.005, high + room)] : [low - room, high + room];
}

const short = (value) =>
  Math.abs(value) >= 1e12 ? value.toExponential(1) : Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : String(value);
export const named = (axis) => (axis === "seconds" ? "time" : axis.startsWith("updates/") ? `updates of ${axis.slice(8)}` : axis === "flops" ? "FLOPs" : axis);

function underlay(plot, healthy) {
  if (!healthy || healthy.every((limit) => limit === null)) return;
  const { ctx, bbox } = plot, { min, max } = plot.scales.y;
  const at = (value) => Math.min(bbox.top + bbox.height, Math.max(bbox.top, plot.valToPos(value, "y", true)));
  const top = at(healthy[1] ?? max), bottom = at(healthy[0] ?? min);
  ctx.fillStyle = faded("--ok", 0.1);
  ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
}

function schedule(plot, lanes) {
  const { ctx, bbox } = plot, x = plot.data[0], unit = devicePixelRatio;
  (lanes ?? []).forEach((lane, row) => {
    ctx.fillStyle = colour(lane.tone);
    lane.values.forEach((value, at) => {
      if (!value) return;
      const before = at ? plot.valToPos(x[at - 1], "x", true) : bbox.left, here = plot.valToPos(x[at], "x", true);
      const left = Math.max(bbox.left, before), right = Math.min(bbox.left + bbox.width, Math.max(here, before + unit));
      ctx.globalAlpha = 0.25 + 0.75 * value;
      if (right > left) ctx.fillRect(left, bbox.top - (row + 1) * 6 * unit, right - left, 4 * unit);
    });
    ctx.globalAlpha = 1;
  });
}
