"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const plan = JSON.parse(document.getElementById("charts-plan").textContent);
  const order = ["hint", "info", "warning", "critical"]; // the worst is drawn last, over the others
  const spans = (report.spans || []).slice().sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
  const HEIGHT = 190;
  const MOST_SHADES = 4; // of more curves the shades between least and greatest cover each other
  const BAR = 17; // a finding's row: its bar, and its name below
  const MOST_NAMED = 4; // more rows would cover the curves
  let drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const two = (value) => String(value).padStart(2, "0");

  function clock(seconds) {
    const whole = Math.round(seconds * 10) / 10;
    const minutes = Math.floor(whole / 60);
    const rest = Math.round((whole - minutes * 60) * 10) / 10;
    const shown = Number.isInteger(rest) ? two(rest) : rest.toFixed(1).padStart(4, "0");
    return minutes < 60 ? `${minutes}:${shown}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${shown}`;
  }

  const grouped = (value) => value.toFixed(0).replace(/\B(?=(\d{3})+$)/g, " ");

  function figure(value) {
    if (value == null) return "–";
    return Math.abs(value) >= 100 ? grouped(value) : value.toPrecision(3);
  }

  function tick(value) {
    return Math.abs(value) >= 1000 ? grouped(value) : `${+value.toPrecision(4)}`;
  }

  function columns(chart) {
    const curves = chart.places.map((place) => report.series[place]);
    const first = curves[0];
    const times = first.mean.map((_, place) => first.start_seconds + (place + 0.5) * first.bucket_seconds);
    const scaled = (values) => values.map((value) => (value == null ? null : value * chart.factor));
    const data = [times];
    for (const curve of curves) {
      data.push(scaled(curve.mean), scaled(curve.max || curve.mean), scaled(curve.min || curve.mean));
    }
    return { curves, data };
  }

  function drawBands(plot, series) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const shown = spans.filter((span) => span.kind === "phase" || span.series.includes(series));
    const names = [...new Set(shown.filter((span) => span.kind === "finding").map((span) => span.name))].reverse(); // worst first
    const labels = new Map();
    for (const span of shown) {
      const left = plot.valToPos(span.start_seconds, "x", true);
      const width = Math.max(1, plot.valToPos(span.end_seconds, "x", true) - left);
      if (span.kind === "phase" && width < bbox.width * 0.003) continue; // many of them are a grey veil
      if (span.kind === "phase") {
        ctx.fillStyle = color(`--phase-${span.name}`) || color("--phase");
        ctx.globalAlpha = 0.16;
        ctx.fillRect(left, bbox.top, width, bbox.height);
      } else {
        ctx.fillStyle = color(`--${span.severity}`);
        ctx.globalAlpha = width < bbox.width * 0.95 ? 0.06 : 0; // over all of the chart it would say nothing
        ctx.fillRect(left, bbox.top, width, bbox.height);
        ctx.globalAlpha = 1;
        const row = names.indexOf(span.name);
        const top = bbox.top + Math.min(row, MOST_NAMED) * BAR * devicePixelRatio;
        ctx.fillRect(left, top, width, 2 * devicePixelRatio);
        const isVisible = left < bbox.left + bbox.width && left + width > bbox.left;
        const before = labels.get(span.name);
        if (row < MOST_NAMED && isVisible && (!before || left < before.left)) labels.set(span.name, { left, top, fill: ctx.fillStyle });
      }
    }
    ctx.restore();
    return labels;
  }

  function drawLabels({ ctx, bbox }, labels) {
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    for (const [name, { left, top, fill }] of labels) {
      const room = ctx.measureText(name).width + 6 * devicePixelRatio;
      const x = Math.max(bbox.left, Math.min(left, bbox.left + bbox.width - room));
      ctx.fillStyle = fill;
      ctx.fillText(name, x + 3 * devicePixelRatio, top + 3 * devicePixelRatio);
    }
    ctx.restore();
  }

  function options(chart, curves, figureElement, width) {
    const values = [...figureElement.querySelectorAll(".legend b")];
    const at = figureElement.querySelector(".at");
    const shaded = curves.length <= MOST_SHADES;
    const series = [{}];
    const bands = [];
    let labels = new Map();
    curves.forEach((curve, place) => {
      const stroke = color(`--c${place % 8}`);
      const fill = curves.length === 1 ? `${stroke}14` : undefined;
      series.push({ stroke, fill, width: 1.25, points: { show: false } });
      series.push({ stroke: "transparent", width: 0, points: { show: false }, show: shaded });
      series.push({ stroke: "transparent", width: 0, points: { show: false }, show: shaded });
      if (shaded) bands.push({ series: [place * 3 + 2, place * 3 + 3], fill: `${stroke}2e` });
    });
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const font = "11px system-ui, sans-serif";
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "gpuwatch", setSeries: false }, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [chart.low, Math.max(chart.high, high || 0)] } },
      axes: [
        { ...axis, font, size: 28, space: 60, values: (_, splits) => splits.map(clock) },
        { ...axis, font, size: 46, space: 32, values: (_, splits) => splits.map(tick) },
      ],
      series,
      bands,
      hooks: {
        drawClear: [(plot) => (labels = drawBands(plot, chart.series))],
        draw: [(plot) => drawLabels(plot, labels)],
        setCursor: [
          (plot) => {
            const place = plot.cursor.idx;
            const seconds = place == null ? null : plot.data[0][place];
            at.textContent = seconds == null ? "" : `${clock(seconds)} · ${wall(seconds)}`;
            values.forEach((element, curve) => {
              element.textContent = place == null ? "" : figure(plot.data[1 + curve * 3][place]);
            });
          },
        ],
      },
    };
  }

  function wall(seconds) {
    const anchor = report.clock.filter((each) => each.start_seconds <= seconds).pop() || report.clock[0];
    const shown = anchor.wall_time + seconds - anchor.start_seconds;
    return new Date(shown * 1000).toLocaleTimeString([], { hour12: false });
  }

  function draw() {
    for (const { plot } of drawn) plot.destroy();
    drawn = plan.map((chart, place) => {
      const element = document.querySelector(`[data-chart="${place}"]`);
      const { curves, data } = columns(chart);
      element.classList.add("alive");
      const plot = new uPlot(options(chart, curves, element, element.clientWidth), data, (self, start) => {
        element.querySelector(".static").after(self.root);
        start();
      });
      return { element, plot };
    });
  }

  draw();
  new ResizeObserver(() => {
    for (const { element, plot } of drawn) {
      if (element.clientWidth && element.clientWidth !== plot.width) {
        plot.setSize({ width: element.clientWidth, height: HEIGHT });
      }
    }
  }).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
})();
