"use strict";
// Draws the charts of a page. What is drawn is plain data in the script element #data, one entry
// per chart; how, is said by the attribute data-draw, a function of `draw` below.

const data = JSON.parse(document.getElementById("data").textContent);
const narrow = () => window.innerWidth < 640;

// --- words and colours ---------------------------------------------------------------------------

// Asked for once each: after a chart is added to the page, the answer has the page laid out anew.
const known = new Map();
function styled(element, name) {
  if (!known.has(name)) known.set(name, getComputedStyle(element).getPropertyValue(name).trim());
  return known.get(name);
}
const color = (name) => styled(document.documentElement, "--" + name);
const font = () => styled(document.body, "font-family");

function digits(value) {
  if (Math.abs(value) >= 1e6) return value.toPrecision(3);
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : 2);
}

function seconds(value) {
  if (Math.abs(value) >= 999.5 && Math.abs(value) < 1e15) return Math.round(value).toLocaleString("en-US") + " s";
  for (const [unit, factor] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]])
    if (Math.abs(value) >= factor) return digits(value / factor) + " " + unit;
  return value === 0 ? "0 s" : digits(value / 1e-9) + " ns";
}

function bytes(value) {
  for (const [unit, power] of [["TiB", 40], ["GiB", 30], ["MiB", 20], ["KiB", 10]])
    if (Math.abs(value) >= 2 ** power) return digits(value / 2 ** power) + " " + unit;
  return digits(value) + " B";
}

function percent(value) {
  return value > 0 && value < 0.0005 ? "<0.1 %" : (100 * value).toFixed(1) + " %";
}

const units = { seconds, bytes };

// An interval between ticks that is a round number of binary units.
function byteScale(most, ticks) {
  const unit = 2 ** (10 * Math.max(0, Math.floor(Math.log2(Math.max(most, 1)) / 10)));
  const steps = [0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 500, 1000];
  return { interval: unit * (steps.find((step) => most / unit / step <= ticks) || 1000) };
}

function escaped(text) {
  const element = document.createElement("span");
  element.textContent = text;
  return element.innerHTML;
}

function lines(...parts) {
  return parts.filter((part) => part).map(escaped).join("<br>");
}

const partColors = {
  compute: "compute", tp_communication: "tp", dp_communication: "dp", pp_communication: "pp",
  cp_communication: "cp", ep_communication: "ep", bubble: "bubble", optimizer: "optimizer",
  overhead: "overhead", parameters_bytes: "parameters", gradients_bytes: "gradients",
  optimizer_bytes: "optimizer-state", state_inputs_bytes: "optimizer-state", activations_bytes: "activations", buffers_bytes: "buffers",
  reserve_bytes: "reserve", exposed: "exposed", hidden: "hidden",
};
const spare = ["compute", "tp", "optimizer", "cp", "pp", "dp", "ep", "exposed", "overhead"]; // neighbours differ most

function seriesColor(index) {
  return color(spare[index % spare.length]);
}

// --- what charts have in common ------------------------------------------------------------------

function text() {
  return { color: color("ink"), fontSize: 12, fontFamily: font() };
}

function axis(more) {
  return Object.assign({
    axisLine: { lineStyle: { color: color("line") } },
    axisTick: { lineStyle: { color: color("line") } },
    axisLabel: { color: color("soft"), hideOverlap: true },
    splitLine: { lineStyle: { color: color("line") } },
    nameTextStyle: { color: color("soft") },
  }, more);
}

function base(more) {
  return Object.assign({
    animation: false,
    textStyle: text(),
    tooltip: tooltip({}),
    legend: { show: false }, // `showLegend` draws it: lines of words break where a page does
  }, more);
}

function tooltip(more) {
  return Object.assign({
    confine: true, backgroundColor: color("card"), borderColor: color("line"),
    textStyle: { color: color("ink"), fontSize: 12 },
    extraCssText: "max-width: min(420px, 90vw); white-space: normal; overflow-wrap: anywhere;",
  }, more);
}

// What stands beside a name in a legend: how series of this type look.
const marks = { scatter: "dot", line: "stroke" };

// The names of series with their colours, above the chart; a click leaves a series out, or takes it in.
function showLegend(element, chart, option) {
  const legend = document.getElementById(element.id.replace("chart", "legend"));
  const named = new Map(option.legend ? option.series.map((series) => [series.name, series]) : []);
  legend.replaceChildren(...[...named].map(([name, series]) => {
    const entry = document.createElement("button");
    const mark = document.createElement("i");
    mark.className = (series.symbol === "diamond" && series.type === "scatter" ? "diamond" : marks[series.type]) || "";
    mark.style.color = series.itemStyle.color;
    entry.append(mark, name);
    entry.setAttribute("aria-pressed", "true");
    entry.addEventListener("click", () => {
      chart.dispatchAction({ type: "legendToggleSelect", name });
      entry.setAttribute("aria-pressed", entry.getAttribute("aria-pressed") === "false");
    });
    return entry;
  }));
}

// `low`: whether the limit is near the begin of the axis, where words stand behind it and above it.
function limitLine(each, unit, vertical, index = 0, low = false) {
  const at = vertical ? { xAxis: each.value } : { yAxis: each.value };
  return Object.assign(at, {
    label: { formatter: each.label + ": " + unit(each.value), color: color("soft"),
             rotate: 0, align: vertical ? (low ? "left" : "right") : undefined,
             position: vertical ? "start" : (index % 2 ? "insideEnd" : "insideStart") + (index % 2 && !low ? "Bottom" : "Top") },
    lineStyle: { color: color("front"), type: "dashed" },
  });
}

// Labels of rows, in two lines of a third of the chart at most, and the room that they take.
const pen = document.createElement("canvas").getContext("2d");
function rowLabels(element, names) {
  const wide = (text) => pen.measureText(text).width;
  pen.font = "12px " + font();
  const most = element.clientWidth / 3;
  // What goes into one line, up to a space or a hyphen if there is one, and the rest.
  const cut = (name) => {
    let end = name.length;
    while (end > 4 && wide(name.slice(0, end)) > most) end -= 1;
    const pause = Math.max(name.lastIndexOf("-", end - 1), name.lastIndexOf(" ", end - 1)) + 1;
    if (end < name.length && pause > 4) end = pause;
    return [name.slice(0, end), name.slice(end)];
  };
  const broken = names.map((name) => {
    const [first, rest] = cut(name);
    if (!rest) return [first];
    const [second, more] = cut(rest.trim());
    return [first, more ? second.slice(0, -1) + "…" : second];
  });
  const room = Math.ceil(Math.max(...broken.flat().map(wide))) + 14;
  return { room, label: { color: color("ink"), interval: 0, lineHeight: 13, formatter: (_, at) => broken[at].join("\n") } };
}

// An axis for what spreads over decades is logarithmic, else it is not.
function spread(values) {
  const ends = extent(values);
  if (ends.max / ends.min > 20) return { type: "log", ...ends };
  return ends.max / ends.min > 1.4 ? { type: "value", scale: true } : { type: "value", ...ends };
}

// A limit that is so many times what is drawn is told in words; on the axis, it would press the rest
// flat.
const FAR = 5;

// --- the kinds of charts -------------------------------------------------------------------------

const draw = {
  bars(element, found) {
    const unit = units[found.unit];
    const names = found.rows.map((row) => row.label);
    const scale = found.unit === "bytes" ? byteScale : () => ({});
    const totals = found.rows.map((row) => Object.values(row.parts).reduce((sum, part) => sum + part, 0));
    const most = Math.max(...totals);
    const limits = (found.limits || []).filter((each) => each.value < 20 * most);
    const low = (each) => each.value < 0.4 * Math.max(most, ...limits.map((other) => other.value));
    const labels = rowLabels(element, names);
    const series = found.parts.map((part, index) => ({
      name: part.label, type: "bar", stack: "all", barMaxWidth: 22,
      itemStyle: { color: partColors[part.name] ? color(partColors[part.name]) : seriesColor(index) },
      data: found.rows.map((row) => row.parts[part.name] || 0),
      markLine: index || !limits.length ? undefined
        : { symbol: "none", data: limits.map((each) => limitLine(each, unit, true, 0, low(each))) },
    }));
    return base({
      grid: { left: labels.room, right: 24, top: limits.length ? 26 : 8, bottom: 28 },
      tooltip: tooltip({
        trigger: "axis", axisPointer: { type: "shadow" },
        formatter(parts) {
          const row = parts[0].dataIndex;
          const rest = parts.filter((part) => part.value).map(
            (part) => part.marker + escaped(`${part.seriesName}: ${unit(part.value)} (${percent(part.value / totals[row])})`));
          return [escaped(names[row]), ...rest, escaped("total: " + unit(totals[row]))].join("<br>");
        },
      }),
      xAxis: axis({ type: "value", max: Math.max(most, ...limits.map((each) => each.value)) * 1.02,
                    ...scale(Math.max(most, ...limits.map((each) => each.value)), narrow() ? 3 : 8),
                    axisLabel: { color: color("soft"), formatter: unit, hideOverlap: true, showMaxLabel: false },
                    splitNumber: narrow() ? 3 : 6 }),
      yAxis: axis({ type: "category", data: names, inverse: true, axisLabel: labels.label,
                    splitLine: { show: false } }),
      series,
    });
  },

  gantt(element, found) {
    const kinds = ["forward", "backward", "weight", "overlapped"];
    const ranks = Array.from({ length: found.ranks }, (_, rank) => "rank " + rank);
    function rectangle(params, api) {
      const [x, y] = api.coord([api.value(1), api.value(0)]);
      const [end] = api.coord([api.value(2), api.value(0)]);
      const height = api.size([0, 1])[1] * 0.72;
      const area = params.coordSys;
      const shape = echarts.graphic.clipRectByRect(
        { x, y: y - height / 2, width: Math.max(end - x, 0.5), height },
        { x: area.x, y: area.y, width: area.width, height: area.height });
      if (!shape) return undefined;
      const wide = shape.width > 34 && height > 11;
      return { type: "rect", shape, style: Object.assign(api.style(), { stroke: color("card"), lineWidth: shape.width > 3 ? 1 : 0 }),
               textContent: wide ? { style: { text: labels[params.seriesIndex][params.dataIndex], fill: "#fff", fontSize: 10 } } : undefined,
               textConfig: wide ? { position: "inside" } : undefined };
    }
    function line(params, api) {
      const from = api.coord([api.value(2), api.value(0)]);
      const to = api.coord([api.value(3), api.value(1)]);
      const area = params.coordSys;
      const inside = (x) => x >= area.x && x <= area.x + area.width;
      if (!inside(from[0]) || !inside(to[0])) return undefined;
      return { type: "line", shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] },
               style: { stroke: color("message"), lineWidth: 1, opacity: 0.7 } };
    }
    const shown = kinds.filter((kind) => found.actions.some((each) => each[3] === kind));
    const labels = shown.map((kind) => found.actions.filter((each) => each[3] === kind).map((each) => each[4]));
    const series = shown.map((kind) => ({
      name: kind, type: "custom", renderItem: rectangle, itemStyle: { color: color(kind) },
      encode: { x: [1, 2], y: 0 }, progressive: 0, clip: true,
      data: found.actions.filter((each) => each[3] === kind).map((each) => [each[0], each[1], each[2], each[4]]),
    }));
    if (found.messages.length) series.push({
      name: "messages", type: "custom", renderItem: line, itemStyle: { color: color("message") },
      encode: { x: [2, 3], y: [0, 1] }, data: found.messages, z: 5, progressive: 0,
    });
    return base({
      grid: { left: 8, right: 20, top: 8, bottom: 44, containLabel: true },
      tooltip: tooltip({
        formatter(item) {
          const each = item.value;
          if (item.seriesName === "messages")
            return lines(`${each[4]}: rank ${each[0]} to rank ${each[1]}`, `${seconds(each[2])} to ${seconds(each[3])} (${seconds(each[3] - each[2])})`, bytes(each[5]));
          return lines(`${each[3]} on rank ${each[0]}, ${item.seriesName}`, `${seconds(each[1])} to ${seconds(each[2])} (${seconds(each[2] - each[1])})`);
        },
      }),
      dataZoom: [{ type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, preventDefaultMouseMove: false },
                 { type: "slider", filterMode: "weakFilter", height: 18, bottom: 8, borderColor: color("line"), textStyle: { color: color("soft") },
                   labelFormatter: (value) => seconds(value), showDataShadow: false }],
      xAxis: axis({ type: "value", min: 0, max: found.drawn_seconds, axisLabel: { color: color("soft"), formatter: seconds, hideOverlap: true, showMaxLabel: false } }),
      yAxis: axis({ type: "category", data: ranks, inverse: true, splitLine: { show: false } }),
      series,
    });
  },

  lines(element, found) {
    const unit = units[found.unit];
    const held = greatest(found.lines.flatMap((line) => line.points.map((point) => point[1])));
    const limits = found.limits.filter((each) => each.value < FAR * held);
    const far = found.limits.filter((each) => each.value >= FAR * held).map((each) => `${each.label}: ${unit(each.value)}`);
    const most = Math.max(held, ...limits.map((each) => each.value));
    return base({
      title: far.length ? { text: "↑ " + (narrow() ? far[0] : far.join(", ")), right: 20, top: 0, textStyle: { color: color("front"), fontSize: 12, fontWeight: "normal" } } : undefined,
      grid: { left: 8, right: 20, top: far.length ? 24 : 8, bottom: 8, containLabel: true },
      tooltip: tooltip({ trigger: "axis", formatter: (parts) =>
        [escaped(seconds(parts[0].value[0])), ...parts.map((part) => part.marker + escaped(`${part.seriesName}: ${unit(part.value[1])}`))].join("<br>") }),
      xAxis: axis({ type: "value", min: 0, max: found.drawn_seconds, axisLabel: { color: color("soft"), formatter: seconds, hideOverlap: true, showMaxLabel: false } }),
      yAxis: axis({ type: "value", min: 0, max: most * (limits.length ? 1.12 : 1.06), ...byteScale(most, 5), axisLabel: { color: color("soft"), formatter: unit, showMaxLabel: false } }),
      series: found.lines.map((line, index) => ({
        name: line.label, type: "line", step: "end", symbol: "none", data: line.points, sampling: "lttb",
        lineStyle: { width: 1.6 }, itemStyle: { color: seriesColor(index) },
        areaStyle: found.lines.length === 1 ? { opacity: 0.18 } : undefined,
        markLine: index ? undefined : { symbol: "none", data: limits.map((each, at) => limitLine(each, unit, false, at, each.value < 0.4 * most)) },
      })),
    });
  },

  space(element, found) {
    const points = found.points;
    const names = ["feasible", "does not fit", "failed"];
    const colors = ["point", "unfit", "failed"];
    const label = (at) => strategyOf(points, at);
    const series = names.map((name, state) => ({
      name, type: "scatter", itemStyle: { color: color(colors[state]), opacity: state ? 0.6 : 0.7 }, symbolSize: points.states.length > 500 ? 5 : 7,
      large: points.states.length > 2000, largeThreshold: 2000, progressive: 0, z: state ? 1 : 2,
      data: points.states.flatMap((each, at) => each === state && points.seconds[at] != null && points.needed[at] != null
        ? [[points.seconds[at], points.needed[at], at]] : []),
    })).filter((each) => each.data.length);
    if (found.front.length) series.push({ name: "front", type: "line", step: "end", symbol: "circle", symbolSize: 6, z: 4,
                  lineStyle: { color: color("front"), width: 1.5 }, itemStyle: { color: color("front") }, data: found.front });
    if (found.best.length) series.push({ name: "best", type: "scatter", symbol: "diamond", symbolSize: 16, z: 6,
      itemStyle: { color: color("good"), borderColor: color("card"), borderWidth: 1 }, data: found.best });
    if (series.length) series[0].markLine = { symbol: "none", silent: true, data: [limitLine({ label: "memory of a device", value: found.limit }, bytes, false)] };
    const marked = [...found.front, ...found.best];
    const sizes = [...points.needed.filter((value) => value != null), ...marked.map((each) => each[1]), found.limit];
    const times = [...points.seconds, ...marked.map((each) => each[0])];
    return base({
      grid: { left: 8, right: 28, top: 8, bottom: 26, containLabel: true },
      tooltip: tooltip({
        formatter(item) {
          const [took, needs, what] = item.value;
          const named = typeof what === "string";
          const numbers = `${seconds(took)} per iteration, needs ${bytes(needs)}`;
          if (named) return lines(item.seriesName, what, numbers);
          const why = points.reasons[what] || (points.states[what] === 1 ? `does not fit: needs ${bytes(needs)} of ${bytes(found.limit)}` : "");
          return lines(label(what), numbers, why);
        },
      }),
      xAxis: axis({ ...spread(times), name: "seconds of an iteration", nameLocation: "middle", nameGap: 26,
                    axisLabel: { color: color("soft"), formatter: seconds, hideOverlap: true, showMinLabel: false, showMaxLabel: false } }),
      yAxis: axis({ type: "log", logBase: 2, ...extent(sizes, 1.6), axisLabel: { color: color("soft"), formatter: bytes, hideOverlap: true, showMinLabel: false, showMaxLabel: false } }),
      series,
    });
  },

  parallel(element, found) {
    const axes = found.choices.map((choice, dim) => ({ dim, name: shortName(choice), type: "category", data: choice.values }));
    const last = axes.length;
    const sorted = [...found.last.values].sort((one, other) => one - other);
    const most = Math.max(sorted[sorted.length - 1], 1e-9);
    const [unit, scale] = found.last.unit === "bytes" ? [bytes, byteScale(most, 6)] : [percent, {}];
    axes.push({ dim: last, name: found.last.name, type: "value", inverse: true, min: 0, ...scale, axisLabel: { color: color("soft"), formatter: unit } });
    return base({
      legend: undefined,
      tooltip: undefined,
      visualMap: { show: true, orient: "horizontal", left: narrow() ? 0 : "center", bottom: 0, dimension: last, min: sorted[0], max: sorted[Math.floor(0.8 * sorted.length)], // of a few that are far worse, no colour need tell how far
                   itemHeight: 110, itemWidth: 10, calculable: false, formatter: unit,
                   text: [found.last.name, ""], textStyle: { color: color("soft") },
                   inRange: { color: [color("cold"), color("unfit")] } },
      parallel: { left: 34, right: 64, top: 34, bottom: 52, axisExpandable: false,
                  parallelAxisDefault: { nameLocation: "start", nameGap: 14, nameTextStyle: { color: color("ink"), fontSize: 11 },
                    axisLine: { lineStyle: { color: color("soft") } }, axisTick: { show: false }, axisLabel: { color: color("ink"), fontSize: 10, backgroundColor: color("card"), padding: [1, 2], borderRadius: 2 }, z: 20,
                    areaSelectStyle: { width: 14, borderColor: color("accent"), color: color("accent"), opacity: 0.25 } } },
      parallelAxis: axes,
      series: [{ type: "parallel", smooth: false, progressive: 0, lineStyle: found.last.values.length > 100 ? { width: 1, opacity: 0.35 } : { width: 2, opacity: 0.8 }, inactiveOpacity: 0.02, activeOpacity: 0.7,
                 data: found.last.values.map((value, at) => [...found.choices.map((choice) => choice.codes[at]), value])
                   .sort((one, other) => other[last] - one[last]) }], // the best on top
    });
  },

  heat(element, found, tools) {
    if (!tools.childElementCount) {
      const names = found.choices.map((choice) => choice.label);
      for (const [at, words] of [[0, "across"], [1, "by"]]) {
        const select = document.createElement("select");
        select.setAttribute("aria-label", words);
        names.forEach((name, index) => select.add(new Option(name, index, index === at, index === at)));
        select.addEventListener("change", () => redraw(element));
        tools.append(select, at ? "" : "against");
      }
    }
    const [one, other] = [...tools.querySelectorAll("select")].map((select) => found.choices[select.value]);
    let cells = found.pairs[one.name + "," + other.name];
    if (!cells) {
      const turned = found.pairs[other.name + "," + one.name] || [];
      cells = turned.map(([first, second, ...rest]) => [second, first, ...rest]);
    }
    const fitting = cells.filter((cell) => cell[2] != null);
    const nothing = cells.filter((cell) => cell[2] == null);
    const most = Math.min(1, Math.max(0.05, ...fitting.map((cell) => cell[2])));
    const words = (cell) => `${cell[4]} of ${cell[3]} fit`;
    return base({
      legend: undefined,
      grid: { left: 8, right: 20, top: 26, bottom: 66, containLabel: true },
      tooltip: tooltip({ formatter: ({ value }) => lines(`${one.label} ${one.values[value[0]]}, ${other.label} ${other.values[value[1]]}`,
        value[2] == null ? "nothing fits" : `the best is ${percent(value[2])} behind`, words(value)) }),
      visualMap: { seriesIndex: 0, dimension: 2, min: 0, max: most, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10,
                   text: ["behind the best", ""], formatter: percent, textStyle: { color: color("soft") },
                   inRange: { color: [color("cold"), color("warm")] } },
      xAxis: axis({ type: "category", data: one.values, splitLine: { show: false }, name: one.label, nameLocation: "middle", nameGap: 26 }),
      yAxis: axis({ type: "category", data: other.values, splitLine: { show: false }, name: other.label, nameGap: 8 }),
      series: [
        { type: "heatmap", data: fitting.map((cell) => ({ value: cell, label: { color: color(cell[2] < most / 2 ? "on-cold" : "on-warm") } })), itemStyle: { borderColor: color("card"), borderWidth: 2 },
          label: { show: one.values.length <= (narrow() ? 5 : 14), fontSize: 11, formatter: ({ value }) => percent(value[2]) } },
        { type: "heatmap", data: nothing, itemStyle: { color: color("empty"), borderColor: color("card"), borderWidth: 2 },
          label: { show: one.values.length <= 14 && !narrow(), fontSize: 10, color: color("soft"), formatter: "nothing fits" } },
      ],
    });
  },

  effects(element, found) {
    const rows = found.rows;
    const names = rows.map((row) => `${percent(row.explained)}  ${row.choice}`);
    const labels = rowLabels(element, names);
    const cap = Math.min(1, Math.max(0.05, 1.05 * Math.max(...rows.flatMap((row) => row.values.map((each) => each.behind || 0)))));
    const data = rows.flatMap((row, at) => row.values.filter((each) => each.behind != null)
      .map((each) => [Math.min(each.behind, cap), at, each.value, each.behind, each.count, each.feasible]));
    const none = rows.flatMap((row, at) => row.values.filter((each) => each.behind == null).map((each) => [cap, at, each.value, null, each.count, 0]));
    const marks = (colored, hollow) => ({
      type: "scatter", symbolSize: 11, symbol: hollow ? "emptyCircle" : "circle", itemStyle: { color: color(colored), opacity: 0.85 },
      label: { show: true, position: "top", distance: 1, fontSize: 10, color: color("ink"), formatter: ({ value }) => value[2] },
      labelLayout: { hideOverlap: true },
    });
    return base({
      grid: { left: labels.room, right: 30, top: 10, bottom: 46 },
      tooltip: tooltip({ formatter: ({ value }) => lines(`${rows[value[1]].choice} ${value[2]}`,
        value[3] == null ? "nothing fits" : `the best is ${percent(value[3])} behind`, `${value[5].toLocaleString()} of ${value[4].toLocaleString()} fit`) }),
      xAxis: axis({ type: "value", min: 0, max: cap, name: "behind the best", nameLocation: "middle", nameGap: 26,
                    axisLabel: { color: color("soft"), formatter: percent, hideOverlap: true, showMaxLabel: false } }),
      yAxis: axis({ type: "category", data: names, inverse: true, axisLabel: labels.label }),
      series: [{ ...marks("point", false), name: "best that fits", data }, { ...marks("unfit", true), name: "nothing fits", data: none }].filter((each) => each.data.length),
    });
  },

  search(element, found) {
    const curves = found.samplers.flatMap((sampler) => sampler.curves);
    const tried = found.tried || [];
    const worst = greatest([0.01, ...[...curves, tried].flat().filter((value) => value != null)]);
    const most = Math.min(1, worst);
    const longest = Math.max(2, ...curves.map((curve) => curve.length));
    const label = (value) => (value === most && most < worst ? "≥ " : "") + percent(value);
    const series = found.samplers.flatMap((sampler, index) => sampler.curves.map((curve, seed) => ({
      name: sampler.label, type: "line", step: "end", itemStyle: { color: seriesColor(index) }, z: 6,
      showAllSymbol: true, symbolSize: 7, symbol: (_, { dataIndex }) => (dataIndex === curve.length - 1 && curve.length < longest ? "circle" : "none"),
      lineStyle: { width: sampler.curves.length > 1 ? 1.2 : 2, opacity: sampler.curves.length > 1 ? 0.65 : 1 },
      data: curve.map((value, at) => [at + 1, value == null ? null : Math.min(value, most)]),
      markLine: index || seed ? undefined : { symbol: "none", silent: true, lineStyle: { color: color("front"), type: "dashed" },
        label: { formatter: found.zero, position: "insideEndTop", color: color("soft"), backgroundColor: color("card") }, data: [{ yAxis: 0 }] },
    })));
    if (tried.length) series.push({ name: "a trial that fits", type: "scatter", symbolSize: 6, z: 1, itemStyle: { color: color("soft"), opacity: 0.6 },
      data: tried.flatMap((value, at) => (value == null ? [] : [[at + 1, Math.min(value, most), value]])) });
    return base({
      grid: { left: 8, right: 24, top: 10, bottom: 26, containLabel: true },
      tooltip: tooltip({ trigger: "axis", formatter: (parts) => [escaped("trial " + parts[0].value[0]),
        ...parts.filter((part) => part.value[1] != null).map((part) => part.marker + escaped(`${part.seriesName}: ${percent(part.value[2] ?? part.value[1])}`))].join("<br>") }),
      xAxis: axis({ type: "value", min: 1, max: longest, name: "trials", nameLocation: "middle", nameGap: 26, minInterval: 1 }),
      yAxis: axis({ type: "value", min: 0, max: 1.05 * most, axisLabel: { color: color("soft"), formatter: label, showMaxLabel: false } }),
      series,
    });
  },

  front(element, found) {
    const [across, up] = found.axes;
    const said = ({ value, seriesName }) => lines(seriesName, ...value[2].split("; "));
    const along = ({ name, unit }, place, more) => axis({
      type: "value", scale: true, name, nameLocation: "middle",
      ...(unit === "bytes" ? byteScale(greatest([...found.trials, ...found.front].map((each) => each[place])), 6) : {}),
      axisLabel: { color: color("soft"), hideOverlap: true, formatter: units[unit] || digits }, ...more,
    });
    return base({
      grid: { left: 26, right: 24, top: 10, bottom: 30, containLabel: true },
      tooltip: tooltip({ formatter: said }),
      xAxis: along(across, 0, { nameGap: 28 }),
      yAxis: along(up, 1, { nameGap: 52 }),
      series: [
        { name: "trials", type: "scatter", symbolSize: 6, data: found.trials, itemStyle: { color: color("soft"), opacity: 0.5 } },
        { name: "front", type: "line", step: false, symbol: "diamond", symbolSize: 11, data: found.front, lineStyle: { color: color("compute"), width: 1 }, itemStyle: { color: color("compute") }, z: 5 },
      ],
    });
  },

  scatter(element, found) {
    const all = found.groups.flatMap((group) => group.points.flatMap((point) => point.slice(0, 2)));
    const ends = extent(all);
    return base({
      grid: { left: 8, right: 24, top: 44, bottom: 26, containLabel: true },
      tooltip: tooltip({ formatter: ({ value, seriesName }) => value.length < 3 ? "" :
        lines(seriesName, value[2], `measured ${seconds(value[0])}, predicted ${seconds(value[1])} (${value[1] >= value[0] ? "+" : ""}${percent(value[1] / value[0] - 1)})`) }),
      xAxis: axis({ type: "log", name: "measured", nameLocation: "middle", nameGap: 26, ...ends, axisLabel: { color: color("soft"), formatter: seconds, hideOverlap: true, showMinLabel: false, showMaxLabel: false } }),
      yAxis: axis({ type: "log", name: "predicted", ...ends, axisLabel: { color: color("soft"), formatter: seconds, hideOverlap: true, showMinLabel: false, showMaxLabel: false } }),
      series: [
        ...found.groups.map((group, index) => ({ name: group.label, type: "scatter", symbolSize: 7, data: group.points, itemStyle: { color: seriesColor(index), opacity: 0.75 } })),
        { name: "equal", type: "line", symbol: "none", silent: true, lineStyle: { color: color("soft"), type: "dashed", width: 1 }, itemStyle: { color: color("soft") },
          data: [[ends.min, ends.min], [ends.max, ends.max]] },
      ],
    });
  },
};

// Of any number of values: a call takes no more than some ten thousand arguments for sure.
function greatest(values) {
  return values.reduce((most, value) => Math.max(most, value), -Infinity);
}

function least(values) {
  return values.reduce((found, value) => Math.min(found, value), Infinity);
}

function extent(values, above = 1.15) {
  const usable = values.filter((value) => value != null && value > 0);
  return usable.length ? { min: least(usable) / 1.15, max: greatest(usable) * above } : {};
}

function shortName(choice) {
  return { microbatches: "micro", sequence_parallel: "seq. par.", recompute_every: "every", keep_gathered: "keep", zero_degree: "ZeRO over", cp_exchange: "exchange" }[choice.name] || choice.label;
}

function strategyOf(points, at) {
  return points.choices.map((choice) => `${choice.label} ${choice.values[choice.codes[at]]}`).join(", ");
}

// --- drawing -------------------------------------------------------------------------------------

const charts = new Map();

function redraw(element) {
  const at = Number(element.id.replace("chart-", ""));
  const tools = document.getElementById("tools-" + at);
  let chart = charts.get(element);
  if (!chart) charts.set(element, (chart = echarts.init(element, null, { renderer: "canvas" })));
  const option = draw[element.dataset.draw](element, data[at], tools);
  chart.setOption(option, true);
  showLegend(element, chart, option);
}

const elements = [...document.querySelectorAll(".chart")];
elements.forEach(redraw);
let waiting = 0;
function redrawAll() {
  cancelAnimationFrame(waiting);
  known.clear();
  waiting = requestAnimationFrame(() => elements.forEach((element) => { charts.get(element).resize(); redraw(element); }));
}
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redrawAll(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
for (const chart of charts.values()) chart.getZr().flush();
document.documentElement.dataset.drawn = Math.round(performance.now()); // since navigation began
