# Runs last. Fills the holes that the imports left in the heap, so that what a program allocates lies side by side
# on fresh pages: a sandbox is cleaned page by page, and thousands of scattered ones would cost more than the program.
import _reactor, gc, sys


def close():
    keep = _reactor.filling = [sys._getframe(1).f_code, None] + [None] * 400_000
    gc.collect()
    # Behind everything: no hole is as large as this.
    edge = id(bytes(2 << 20))
    at = 2
    sizes = [1 << power for power in range(20, 12, -1)] + list(range(4096, 511, -64)) + list(range(512, 7, -8)) + [2]
    for size in sizes:
        while at < len(keep):
            block = bytes(size)
            if id(block) >= edge:
                break
            keep[at] = block
            at += 1
    while at < len(keep):
        block = object()
        if id(block) >= edge:
            break
        keep[at] = block
        at += 1
    _reactor._fresh_main()
    gc.freeze()


close()
