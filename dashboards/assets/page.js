"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const figures = document.getElementById("figures").textContent;
  const darker = {"#0072B2": "#4aa8e8", "#D55E00": "#f58a4b", "#009E73": "#35cfa0",
    "#E69F00": "#f3b93f", "#CC79A7": "#e5a3cb", "#56B4E9": "#8fd0f7", "#6B7280": "#a9b2bd",
    "#A3A9B3": "#77818d"};
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let dark = system.matches, chosen = false, ready = false, parsed = {};
  const seen = new Set();

  function exchange(value) {  // the colours of a figure for those of a dark page
    if (typeof value === "string") return darker[value] || value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(exchange);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, exchange(v)]));
  }

  function dressed(figure, width) {
    const made = dark ? exchange(figure) : figure;
    const ink = dark ? "#e9edf1" : "#14181d", grid = dark ? "#313a44" : "#e3e7ec";
    const layout = {...made.layout, font: {...made.layout.font, color: ink},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: dark ? "#77818d" : "#a3a9b3", activecolor: ink},
      hoverlabel: {bgcolor: dark ? "#1c2229" : "#ffffff", font: {color: ink}}};
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) {
        layout[key] = {gridcolor: grid, linecolor: grid, zerolinecolor: grid, ...layout[key]};
      }
    }
    return width < 500 ? narrowed(made.data, layout) : [made.data, layout];
  }

  // --- on a phone: plots one below the other, and parallel axes lying --------------------------

  function narrowed(data, layout) {
    const fitted = {...layout, margin: {...layout.margin, l: 44, r: 8}};
    if (layout.meta === "turn") return turned(data, fitted);
    return [data, layout.grid ? stacked(fitted) : fitted];
  }

  function stacked(layout) {
    const {rows, columns} = layout.grid, top = 80, name = (axis, i) => axis + (i ? i + 1 : "");
    const count = Object.keys(layout).filter(key => key.startsWith("yaxis")).length;
    const made = {...layout, height: top + (layout.height - top) / rows * count,
      grid: {rows: count, columns: 1, pattern: "independent", ygap: 0.35}};
    for (let i = 0; i < count; i += 1) {  // each has the titles that one of its row or column had
      const x = name("xaxis", i), y = name("yaxis", i);
      const left = layout[name("yaxis", i - i % columns)];
      const below = layout[name("xaxis", (rows - 1) * columns + i % columns)] || layout[x];
      made[x] = {...layout[x], title: layout[x].title?.text ? layout[x].title : below.title};
      made[y] = {...layout[y], title: layout[y].title?.text ? layout[y].title : left.title};
    }
    return made;
  }

  function turned(data, layout) {
    const traces = data.map(trace => ({...trace, x: trace.y, y: trace.x}));
    const down = {...layout.xaxis, range: [...layout.xaxis.range].reverse(), automargin: true};
    const annotations = (layout.annotations || []).map(note => ({...note, x: note.y, y: note.x,
      xshift: 0, yshift: 12}));
    return [traces, {...layout, xaxis: layout.yaxis, yaxis: down, annotations}];
  }

  function draw(box) {
    const [data, layout] = dressed(parsed[box.dataset.figure], box.clientWidth);
    box.style.height = `${layout.height}px`;
    return window.Plotly.react(box, data, layout, {responsive: true, displaylogo: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      displayModeBar: box.clientWidth > 600 && window.matchMedia("(hover: hover)").matches
        ? "hover" : false});
  }

  function dress() {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
    button.setAttribute("aria-pressed", String(dark));
    if (ready) seen.forEach(draw);
  }

  button.addEventListener("click", () => { chosen = true; dark = !dark; dress(); });
  system.addEventListener("change", e => { if (!chosen) { dark = e.matches; dress(); } });
  document.querySelectorAll('a[href^="#"]').forEach(link => link.addEventListener("click", e => {
    const goal = document.getElementById(link.getAttribute("href").slice(1));
    e.preventDefault();  // the browser's own jump would take the focus away again
    if (window.self === window.top) history.replaceState(null, "", link.getAttribute("href"));
    goal.scrollIntoView();
    const stop = goal.querySelector("[tabindex]") || goal;
    stop.focus({preventScroll: true});
  }));

  // --- a study that runs: the page reads its file again, and looks as before ----------------------

  const every = 1000 * Number(document.body.dataset.refresh);
  const tables = [...document.querySelectorAll("details")];
  let touched = Date.now();

  function keep() {
    const state = {y: window.scrollY, dark: chosen ? dark : null, open: tables.map(t => t.open)};
    try { sessionStorage.setItem("kept", JSON.stringify(state)); } catch { /* it begins anew */ }
  }

  function takeUp() {
    let state = null;
    try {
      state = JSON.parse(sessionStorage.getItem("kept"));
      sessionStorage.removeItem("kept");
    } catch { /* it begins anew */ }
    if (state === null) return;
    if (state.dark !== null) { chosen = true; dark = state.dark; }
    tables.forEach((table, i) => { table.open = state.open[i] ?? table.open; });
    window.scrollTo(0, state.y);
  }

  if (every && window.self === window.top) {
    history.scrollRestoration = "manual";
    takeUp();
    for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"]) {
      window.addEventListener(kind, () => { touched = Date.now(); }, {passive: true});
    }
    setInterval(() => {  // not under somebody's hands
      if (document.visibilityState !== "visible" || Date.now() - touched < every / 2) return;
      keep();
      location.reload();
    }, every);
  }

  // --- the best configuration ---------------------------------------------------------------------

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // in a frame, or from a server without TLS
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
    return true;
  }

  const copies = document.getElementById("copy");
  if (copies) {
    copies.addEventListener("click", async () => {
      const config = document.getElementById("config"), done = await copy(config.textContent);
      document.getElementById("copied").textContent = done ? "Copied." : "Copy it from here:";
      config.hidden = done;
    });
  }
  dress();

  async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent),
      c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  function watch() {
    parsed = JSON.parse(figures);
    ready = true;
    const boxes = document.querySelectorAll("[data-figure]");
    const near = new IntersectionObserver(entries => entries.forEach(entry => {
      if (!entry.isIntersecting) return;
      near.unobserve(entry.target);
      seen.add(entry.target);
      draw(entry.target);
    }), {rootMargin: "600px"});
    boxes.forEach(box => near.observe(box));
  }

  unpack().then(watch).catch(() => {
    document.querySelectorAll("[data-figure]").forEach(box => {
      box.style.height = "auto";
      box.textContent = "This browser is too old for the plots; the table says the same.";
    });
  });
})();
