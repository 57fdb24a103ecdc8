"""A hook of mkdocs: pictures that lie beside the scripts which make them are copied into the site, and flags are marked for site.css."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = re.compile(r"\]\((?:\.\./)+(scripts/[^)]+\.png)\)")
FLAG = re.compile(r"<code>(--[\w-]+(?: [\w.]+)?)</code>")
used: set[str] = set()


def on_page_markdown(markdown, page, config, files):
    """Point a page's pictures into the site, and note them."""
    depth = page.url.count("/")

    def moved(match: re.Match) -> str:
        used.add(match[1])
        return f"]({'../' * depth}{match[1]})"

    return PICTURE.sub(moved, markdown)


def on_page_content(html, page, config, files):
    """Mark flags, for site.css."""
    return FLAG.sub(r'<code class="flag">\1</code>', html)


def on_post_build(config):
    """Copy the pictures that pages use."""
    for name in sorted(used):
        target = Path(config["site_dir"]) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
