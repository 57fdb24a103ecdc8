"""Installs fairseq_ext and the start-up file that lets stock fairseq run on current Python (fairseq_ext/compat)."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

START_UP = Path("fairseq_ext") / "compat" / "fairseq_ext.pth"
VERSION = re.findall(r'__version__ = "(.+)"', (Path(__file__).parent / "fairseq_ext" / "version.py").read_text())[0]


class BuildWithStartUp(build_py):
    """A wheel carries the .pth file at its top, so that it lands in site-packages."""

    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copy(START_UP, Path(self.build_lib) / START_UP.name)


class EditableWithStartUp(editable_wheel):
    """So does an editable install."""

    def _run_build_commands(self, dist_name, unpacked_wheel, build_lib, tmp_dir):
        shutil.copy(START_UP, Path(unpacked_wheel) / START_UP.name)
        return super()._run_build_commands(dist_name, unpacked_wheel, build_lib, tmp_dir)


setup(
    name="fairseq_ext",
    version=VERSION,
    description="Published search methods for stock fairseq 0.12.2: constrained, streaming, certified, shortlisted and parallel decoding",
    license="MIT",
    python_requires=">=3.10",
    classifiers=[  # the Pythons on which the whole test suite has run
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
    packages=find_packages(include=["fairseq_ext", "fairseq_ext.*"]),
    package_data={
        "fairseq_ext": ["py.typed"], "fairseq_ext.compat": ["*.pth"], "fairseq_ext.serve": ["*.html"],
        "fairseq_ext.kernels": ["*.cpp", "*.hpp", "*.cu"],
    },
    # fairseq's own pins cannot be met today, so it is installed by itself: pip install --no-deps fairseq==0.12.2
    install_requires=[
        "torch>=2.6",
        "numpy",
        "hydra-core==1.3.2",
        "omegaconf==2.3.0",
        "cffi",
        "regex",
        "sacrebleu>=2.3",
        "lxml",
        "tqdm",
        "bitarray",
        "sentencepiece",
        "subword-nmt",
    ],
    extras_require={
        "gpu": ["cupy-cuda12x"],
        "plots": ["matplotlib"],
        "cluster": ["ray[serve]", "pyarrow"],
        "terms": ["simplemma>=2"],
        "docs": ["mkdocs-material"],
        "text": ["sentence-splitter", "lingua-language-detector", "openpyxl", "polib"],
        "serve": ["fastapi", "fastapi-offline", "python-multipart", "uvicorn", "uvloop", "httptools", "prometheus-client"],
    },
    cmdclass={"build_py": BuildWithStartUp, "editable_wheel": EditableWithStartUp},
)
