"""Launch an SGLang server of a prefill and decode pair without a GPU: pair_on_cpu.py LAUNCHER ARGS...

The launcher is whatever starts a single server there. Keys and values travel by mooncake over TCP (MC_FORCE_TCP=1). One thing is
changed: mooncake's sender does not say that it takes indices in page-locked memory, which needs a driver, so SGLang takes its
other path, the one of its other transfer backends.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    launcher, *args = sys.argv[1:]
    os.environ.setdefault("MC_FORCE_TCP", "1")
    # Both are read when SGLang is imported.
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(launcher)), "stubs"))
    if "--disaggregation-mode" in args:
        from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

        MooncakeKVSender.supports_host_tensor_indices = False
    sys.argv = [launcher, *args]
    runpy.run_path(launcher, run_name="__main__")
