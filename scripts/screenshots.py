"""Takes the pictures of the server's page, light and dark, that README.md and docs/serve.md show.

    python scripts/screenshots.py [MODEL_DIR] [--out docs/pictures] [--text TEXT]
        [--term SOURCE=TARGET ...] [--avoid PHRASE]

Starts the server on the model (default: checkpoints/demo), types the text and the terms into
its page with headless Chromium, and writes serve-light.png and serve-dark.png. Needs Chromium
(`apt-get install chromium`) and `pip install playwright`.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = "Das Angebot muss noch geprüft werden. Bitte öffnen Sie den Ordner."
TERMS = ["Angebot=quotation|bid", "Ordner=binder|file"]
BANNED = ["checked"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def ready(address: str, server: subprocess.Popen, seconds: float = 600) -> None:
    """Wait until the server takes requests."""
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{address}/ready", timeout=5)
            return
        except OSError:
            time.sleep(0.3)
    sys.exit(f"the server has not started within {seconds:.0f} s: its messages are above")


def take(address: str, browser: str, args: argparse.Namespace) -> list[Path]:
    """Write the page with the translation to a PNG for each colour scheme; return the files."""
    from playwright.sync_api import sync_playwright

    made = []
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = chromium.new_page(
                bypass_csp=True,
                viewport={"width": 1000, "height": 100},
                color_scheme=scheme,
                device_scale_factor=1.25,
            )
            page.set_default_timeout(300_000)
            page.goto(address)
            page.wait_for_function(
                "document.getElementById('model').textContent.startsWith('beam')"
            )
            page.fill("#source", args.text)
            for kind, terms in (("term", args.term or TERMS), ("avoid", args.avoid or BANNED)):
                for term in terms:
                    source, _, target = term.rpartition("=")
                    page.select_option("#kind", kind)
                    page.fill("#term", source)
                    page.fill("#target", target)
                    page.press("#target", "Enter")
            page.select_option("#kind", "term")
            for _ in range(3):  # the first times are those of a model that has just been loaded
                page.wait_for_function(
                    "document.getElementById('facts').textContent.includes(' s')"
                )
                page.click("#go")
                page.wait_for_function(
                    "document.getElementById('facts').textContent.includes(' s')"
                )
            page.evaluate("document.activeElement.blur()")
            made.append(args.out / f"serve-{scheme}.png")
            page.screenshot(path=made[-1], full_page=True)
        chromium.close()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model",
        nargs="?",
        type=Path,
        default=ROOT / "checkpoints" / "demo",
        help="a folder that the server can read",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "pictures", help="where the pictures go"
    )
    parser.add_argument("--text", default=TEXT)
    parser.add_argument(
        "--term", action="append", metavar="SOURCE=TARGET", help="more than once: these terms"
    )
    parser.add_argument(
        "--avoid", action="append", metavar="PHRASE", help="more than once: these banned phrases"
    )
    args = parser.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    args.out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fairseq_ext.serve",
            "--data",
            args.model,
            "--cpu",
            "--beam",
            "5",
            "--port",
            str(port),
        ]
    )
    try:
        ready(address, server)
        for path in take(address, browser, args):
            print(f"{path}: {path.stat().st_size // 1000} kB")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
