"""Makes the office files next to it, by LibreOffice, from a text and slides of our own (source/):
`python make.py` (Debian: apt-get install libreoffice-writer libreoffice-impress
libreoffice-math)."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def made(folder: Path, given: Path, ending: str) -> Path:
    """A file in another form, as LibreOffice writes it."""
    form = ending + ":Impress MS PowerPoint 2007 XML" * (ending == "pptx")
    command = ["soffice", f"-env:UserInstallation=file://{folder}/profile", "--headless"]
    command += ["--convert-to", form, "--outdir", str(folder), str(given)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    return folder / f"{given.stem}.{ending}"


def main() -> int:
    for stem, endings in (("text.fodt", ("odt", "docx", "epub")), ("slides.fodp", ("pptx",))):
        with tempfile.TemporaryDirectory() as folder:
            for ending in endings:
                out = made(Path(folder), HERE / "source" / stem, ending)
                (HERE / out.name).write_bytes(out.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
