"""What fairseq_ext.pth imports at each start of this Python: a finder that runs startup.py, in this
folder of the package, when fairseq is first imported, and that takes the working folder from the
search path of `python -m fairseq_ext...`."""

import os
import sys

STARTUP = "fairseq_ext.plugin.compat.startup"


class Start:
    """A finder that finds nothing itself."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "runpy" and sys.argv[:1] == ["-m"]:
            cls.leave_out_working_folder(sys.orig_argv[-len(sys.argv)])
        if name not in ("fairseq", "fairseq_cli") or STARTUP in sys.modules:
            return None
        sys.meta_path.remove(cls)
        from importlib import util

        package = util.find_spec("fairseq_ext")
        if package is None or not package.submodule_search_locations:
            return None
        place = package.submodule_search_locations[0] + "/plugin/compat/startup.py"
        spec = util.spec_from_file_location(STARTUP, place)
        module = sys.modules[STARTUP] = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.register().find_spec(name, path, target)

    @staticmethod
    def leave_out_working_folder(module):
        """Python has put it in front, before its own modules, unless it is removed."""
        is_first = not getattr(sys.flags, "safe_path", sys.flags.isolated)
        is_ours = module.partition(".")[0] == "fairseq_ext" and not os.path.isdir("fairseq_ext")
        if is_first and is_ours and os.path.isdir(sys.path[0]):
            del sys.path[0]


sys.meta_path.insert(0, Start)
