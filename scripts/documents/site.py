"""A hook of mkdocs: a link from a page to a file of the repository, which the site does not hold,
becomes the name that it has.

On the repository's own pages these links lead to the code; scripts/docs.py checks
that each one does.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page with the links that lead to other pages of the site, or
    out of the repository."""

    def kept(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[2]))
        return link[0] if files.get_file_from_path(place) else link[1]

    return LINK.sub(kept, markdown)
