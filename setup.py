"""Installs fairseq_ext, the start-up files that let stock fairseq run on current Python
(fairseq_ext/plugin/compat), and the compiled kernels.

A wheel has a library for each level of processors (fairseq_ext/kernels/compiling.py), which
no Python's release matters to: one wheel serves them all. Without a C++ compiler, or with
FAIRSEQ_EXT_KERNELS=off, it has none and serves every machine. An editable install compiles for its
own processor, at first use.
"""

import os
import platform
import re
import runpy
import shutil
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

COMPAT = Path("fairseq_ext") / "plugin" / "compat"
START_UP = [COMPAT / "fairseq_ext.pth", COMPAT / "fairseq_ext_start.py"]
VERSION = re.findall(
    r'__version__ = "(.+)"',
    (Path(__file__).parent / "fairseq_ext" / "core" / "__init__.py").read_text(),
)[0]
COMPILING = runpy.run_path(str(Path("fairseq_ext") / "kernels" / "compiling.py"))
COMPILER = COMPILING["compiler"]() if platform.machine() in COMPILING["LEVELS"] else None
COMPILER = None if os.environ.get("FAIRSEQ_EXT_KERNELS") == "off" else COMPILER


def copy_start_up(folder):
    """Copy the .pth file and the module that it imports."""
    for file in START_UP:
        shutil.copy(file, folder)


class Build(build_py):
    """A wheel carries the start-up files at its top, so that they land in site-packages, and the
    libraries."""

    def run(self):
        if not self.editable_mode:
            # files of an earlier state of the clone
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        copy_start_up(self.build_lib)
        if COMPILER is not None:
            COMPILING["compile_levels"](
                COMPILER, Path(self.build_lib) / "fairseq_ext" / "kernels" / "built"
            )


class Compiled(Distribution):
    """A distribution whose compiled libraries make a wheel platform-specific."""

    def has_ext_modules(self):
        return COMPILER is not None


class WheelOfEveryPython(bdist_wheel):
    """A wheel for every release of Python: the compiled libraries do not use Python's API."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class EditableWithStartUp(editable_wheel):
    """An editable install with the start-up files at its top."""

    def _run_build_commands(self, dist_name, unpacked_wheel, build_lib, tmp_dir):
        copy_start_up(unpacked_wheel)
        return super()._run_build_commands(dist_name, unpacked_wheel, build_lib, tmp_dir)


setup(
    name="fairseq_ext",
    version=VERSION,
    description="Published search methods for stock fairseq 0.12.2: constrained, streaming, "
    "certified, shortlisted and parallel decoding",
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
        "fairseq_ext": ["py.typed"],
        "fairseq_ext.plugin.compat": ["*.pth"],
        "fairseq_ext.serve": ["*.html"],
        "fairseq_ext.kernels": ["**/*.cpp", "**/*.h*", "**/*.cu"],
    },
    # fairseq's own pins cannot be met today, so it is installed by itself: python -m
    # fairseq_ext.doctor --install-fairseq
    install_requires=[
        "torch>=2.6",
        "numpy",
        "hydra-core==1.3.2",
        "omegaconf==2.3.0",
        "cffi",
        "regex",
        "sacrebleu>=2.3",
        "lxml>=5",
        "tqdm",
        "bitarray",
        "sentencepiece",
        "subword-nmt",
        "simplemma>=2",
    ],
    extras_require={
        "gpu": ["cupy-cuda12x"],
        "plots": ["matplotlib"],
        "cluster": ["ray", "pyarrow"],
        "allowed": ["interegular"],
        "docs": ["mkdocs-material"],
        "text": [
            "sentencex>=1.0.30",
            "tree-sitter>=0.25",
            "tree-sitter-markdown>=0.5.1",
            "lingua-language-detector",
            "openpyxl",
        ],
        "hf": ["safetensors"],
        "serve": [
            "fastapi",
            "fastapi-offline",
            "python-multipart",
            "uvicorn",
            "uvloop",
            "httptools",
            "prometheus-client",
        ],
    },
    distclass=Compiled,
    cmdclass={
        "build_py": Build,
        "bdist_wheel": WheelOfEveryPython,
        "editable_wheel": EditableWithStartUp,
    },
)
