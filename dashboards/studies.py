"""The page of all studies of a folder, which `autotune ui FOLDER` serves and keeps up to date."""

from __future__ import annotations

from pathlib import Path

from dashboards.page import asset, digest, text


def studies_page(folder: Path) -> str:
    """The page, which asks the server that it came from for the studies."""
    own = asset("studies.js")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest(own.encode())}'; connect-src 'self'; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Studies in {text(folder.name)}</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}{asset("studies.css")}</style>
</head>
<body>
<header>
<div><h1>Studies in {text(folder)}</h1><p id="line" role="status">Loading.</p></div>
<button id="theme" type="button" aria-pressed="false">Dark</button>
</header>
<main id="content" tabindex="-1">
<noscript><p class="note">This page needs scripts; `autotune status DIR` needs none.</p></noscript>
<ul id="studies"></ul>
</main>
<script>{own}</script>
</body>
</html>
"""
