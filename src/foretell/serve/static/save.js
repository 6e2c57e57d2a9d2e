// Saves a run as one HTML file that plays offline: the page's own style and player, with the run as JSON.

const MODULES = ["dom.js", "run.js", "figures.js", "plot.js", "canvas.js", "transport.js", "inspector.js", "heatmap.js", "stopchart.js", "player.js"]; // each after those that it imports
const IMPORT = /^import \{([^}]*)\} from "\.\/([\w-]+\.js)";$/gm;
const EXPORT = /^export (function|const) (\w+)/gm;

// Turn a module into a function call that returns its exports.
export function wrapModule(name, source) {
  const names = [...source.matchAll(EXPORT)].map(match => match[2]);
  const body = source.replace(IMPORT, (_, wanted, from) => `const {${wanted}} = modules["${from}"];`).replace(EXPORT, "$1 $2");
  return `modules["${name}"] = (() => {\n${body}\nreturn { ${names.join(", ")} };\n})();\n`;
}

const escapeText = text => text.replace(/[&<>"]/g, letter => `&#${letter.charCodeAt(0)};`);

function writePage(style, script, run) {
  const policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
  const facts = [run.model, run.recipe, `${run.done.steps} steps`, run.date].map(fact => `<span class="chip">${escapeText(fact)}</span>`).join("\n");
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<title>A run of ${escapeText(run.model)} - Foretell</title>
<style>
${style}
</style>
</head>
<body>
<header class="bar"><h1 class="mark">fore<i>tell</i></h1>
${facts}</header>
<main class="saved-run">
<p class="prompt">${escapeText(run.prompt)}</p>
<div class="stack" id="player"></div>
</main>
<script type="application/json" id="run">${JSON.stringify(run).replace(/</g, "\\u003c")}</script>
<script>
"use strict";
const modules = {};
${script}
modules["player.js"].playSaved();
</script>
</body>
</html>
`;
}

async function fetchText(name) {
  const response = await fetch(new URL(`static/${name}`, document.baseURI));
  if (!response.ok) throw new Error(`The page's own file ${name} cannot be read (${response.status}).`);
  return response.text();
}

export async function saveRun(run) {
  const [style, ...sources] = await Promise.all(["style.css", ...MODULES].map(fetchText));
  const script = sources.map((source, at) => wrapModule(MODULES[at], source)).join("\n");
  const url = URL.createObjectURL(new Blob([writePage(style, script, run)], { type: "text/html" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `foretell-${run.model.replace(/[^\w.-]+/g, "-")}-${run.done.run}.html`;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
