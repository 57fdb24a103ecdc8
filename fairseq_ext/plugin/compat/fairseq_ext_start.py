"""What fairseq_ext.pth imports at each start of this Python: a finder that runs startup.py, in this
folder of the package, when fairseq is first imported.

It also takes the working folder from the search path of `python -m fairseq_ext...`: a file there
could have the name of a module that Python itself imports before ours.
"""

import os
import sys

STARTUP = "fairseq_ext.plugin.compat.startup"


class Start:
    """A finder that finds nothing itself."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("fairseq", "fairseq_cli") and STARTUP not in sys.modules:
            from importlib import util

            if package := util.find_spec("fairseq_ext"):
                place = package.submodule_search_locations[0] + "/plugin/compat/startup.py"
                spec = util.spec_from_file_location(STARTUP, place)
                sys.modules[STARTUP] = util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[STARTUP])
        elif name == "runpy" and sys.argv[:1] == ["-m"] and not os.path.isdir("fairseq_ext"):
            is_ours = sys.orig_argv[-len(sys.argv)].partition(".")[0] == "fairseq_ext"
            if is_ours and not getattr(sys.flags, "safe_path", sys.flags.isolated):
                del sys.path[0]  # Python has put it there


sys.meta_path.insert(0, Start)
