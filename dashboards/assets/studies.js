"use strict";
(() => {
  const PAUSE = 3000;
  const root = document.documentElement, theme = document.getElementById("theme");
  const list = document.getElementById("studies"), line = document.getElementById("line");
  const items = new Map();  // by study: its elements, and what they show
  const asked = new Map();  // by study and action: until when its button waits for the answer

  // --- the token, which is in the address that was printed, and not sent with requests -----------

  function remembered() {
    if (location.hash.length > 1) {
      try { sessionStorage.setItem("token", location.hash.slice(1)); } catch { /* not kept */ }
    }
    const token = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    if (token) return token;
    try { return sessionStorage.getItem("token") || ""; } catch { return ""; }
  }
  const token = remembered();

  // --- colours ------------------------------------------------------------------------------------

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let dark = system.matches, chosen = false;
  function dress() {
    root.dataset.theme = dark ? "dark" : "light";
    theme.textContent = dark ? "Light" : "Dark";
    theme.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
    theme.setAttribute("aria-pressed", String(dark));
  }
  theme.addEventListener("click", () => { chosen = true; dark = !dark; dress(); });
  system.addEventListener("change", e => { if (!chosen) { dark = e.matches; dress(); } });

  // --- studies ------------------------------------------------------------------------------------

  function made(tag, kind, parent, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  function build(study) {
    const item = made("li", "", list);
    const own = {item, shown: "", title: made("h2", "", item), state: made("span", "state", item)};
    own.bar = made("progress", "", item);
    own.progress = made("p", "soft", item);
    own.best = made("p", "best", item);
    own.actions = made("div", "actions", item);
    own.message = made("p", "soft", item);
    own.message.setAttribute("role", "status");
    own.report = made("a", "", own.actions, "Report");
    own.report.href = `${study.place}/report.html`;
    own.mlflow = made("a", "", own.actions, "MLflow");
    own.mlflow.target = "_blank";
    own.mlflow.rel = "noopener noreferrer";
    own.start = button(own, study, "mlflow", "Start MLflow");
    own.stop = button(own, study, "stop", "Stop");
    own.more = made("p", "soft", item);
    own.command = made("code", "", own.more);
    items.set(study.key, own);
    return own;
  }

  function button(own, study, action, text) {
    const element = made("button", "", own.actions, text);
    element.type = "button";
    element.addEventListener("click", () => act(own, study, action));
    return element;
  }

  function show(study) {
    const own = items.get(study.key) || build(study), running = study.state === "running";
    const shown = JSON.stringify(study);
    if (own.shown !== shown) {
      own.shown = shown;
      own.item.className = running ? "running" : "";
      own.title.textContent = study.name === study.key ? study.name : `${study.key}: ${study.name}`;
      own.state.textContent = study.fault ? "cannot be read" : study.state;
      own.best.textContent = study.fault || (study.best ? `Best: ${study.best}` : "No result yet");
      own.bar.hidden = own.progress.hidden = Boolean(study.fault);
      own.bar.max = Math.max(study.planned, 1);
      own.bar.value = study.done;
      own.bar.setAttribute("aria-label", "trials");
      own.progress.textContent = [`${study.done} of ${study.planned} trials`,
        study.confirmations && `confirmations: ${study.confirmations}`, study.target,
        `${Math.round(study.spent_seconds).toLocaleString("en")} s spent`,
        study.updated && `last change ${new Date(study.updated).toLocaleString()}`]
        .filter(Boolean).join(" · ");
      own.command.textContent = study.command;
      own.more.hidden = !study.command;
      own.more.replaceChildren(running ? "Once it has ended, more trials: " : "More trials: ",
        own.command);
      own.report.hidden = Boolean(study.fault);
    }
    const place = study.mlflow.state;
    own.mlflow.hidden = place !== "ready";
    if (place === "ready") own.mlflow.href = study.mlflow.url;
    own.start.hidden = Boolean(study.fault) || !["startable", "starting"].includes(place);
    waits(own.start, study.key, "mlflow", place === "starting", "Start MLflow", "MLflow starts");
    own.stop.hidden = !running;
    waits(own.stop, study.key, "stop", false, "Stop", "Stopping");
    if (!running) asked.delete(`${study.key} stop`);
    if (place === "ready") asked.delete(`${study.key} mlflow`);
  }

  function waits(element, key, action, already, text, meanwhile) {
    const busy = already || Date.now() < (asked.get(`${key} ${action}`) || 0);
    element.disabled = busy || !token;
    element.textContent = busy ? meanwhile : text;
    element.title = token ? "" : "Open the address that `autotune ui` printed: it has the token";
  }

  async function act(own, {key, place}, action) {
    if (action === "stop" && !window.confirm(`Stop ${key}? Its running trials are saved, and it ` +
        "can be resumed.")) return;
    asked.set(`${key} ${action}`, Date.now() + 60000);
    try {
      const answer = await fetch(`${place}/${action}`,
        {method: "POST", headers: {"X-Autotune-Token": token}});
      own.message.textContent = answer.ok ? "" : await answer.text();
      if (!answer.ok) asked.delete(`${key} ${action}`);
    } catch (error) {
      own.message.textContent = String(error);
      asked.delete(`${key} ${action}`);
    }
    update();
  }

  async function update() {
    try {
      const answer = await fetch("studies.json");
      if (!answer.ok) throw new Error(await answer.text());
      const studies = await answer.json(), keys = new Set(studies.map(s => s.key));
      studies.forEach(show);
      for (const [key, own] of items) if (!keys.has(key)) { own.item.remove(); items.delete(key); }
      studies.forEach((study, place) => {  // one that stays where it is keeps the focus
        const { item } = items.get(study.key);
        if (list.children[place] !== item) list.insertBefore(item, list.children[place]);
      });
      const running = studies.filter(s => s.state === "running").length;
      line.textContent = `${studies.length} ${studies.length === 1 ? "study" : "studies"}, ` +
        `${running} running.` +
        (token ? "" : " Without the token of the address that was printed, this page only shows.");
    } catch (error) {
      line.textContent = `No answer from autotune ui: ${error.message}`;
    }
  }

  async function keepUp() {
    if (document.visibilityState === "visible") await update();
    setTimeout(keepUp, PAUSE);
  }

  dress();
  keepUp();
})();
