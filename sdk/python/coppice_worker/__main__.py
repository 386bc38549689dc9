"""The program that an engine starts: python3 -I -B .../coppice_worker/__main__.py, or python3 -m coppice_worker."""

import sys

if __name__ == "__main__":
    if not __package__:  # started by its path: under -I nothing on sys.path leads to the package
        from os.path import abspath, dirname

        sys.path.insert(0, dirname(dirname(abspath(__file__))))
        __package__ = "coppice_worker"
    from coppice_worker.runner import main

    sys.exit(main(sys.argv[1:]))
