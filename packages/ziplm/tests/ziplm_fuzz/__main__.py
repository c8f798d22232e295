"""``python -m ziplm_fuzz``: a long fuzz, with a table of the outcomes."""

import argparse
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

# Libraries read their settings when they are imported.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "critical",
    "ZIPLM_DEBUG": "1",  # unexpected errors are raised, so that their place is seen
}

from ziplm_fuzz.loaders import LOADERS
from ziplm_fuzz.run import fuzz, summary


def main() -> int:
    """Run the fuzz that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="number of damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loader", action="append", choices=list(LOADERS), help="only this loader")
    parser.add_argument("--number", type=int, help="only this case of each loader, as a failure names it")
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-failures"), help="folder for files that failed"
    )
    asked = parser.parse_args()
    started = time.perf_counter()
    results = []
    with suppress(KeyboardInterrupt):  # and show what there is
        for result in fuzz(asked.seed, asked.files, asked.keep.resolve(), asked.loader, asked.number):
            results.append(result)
            if result.failed:
                print(f"{result.outcome}: {result.case} {result.detail}", flush=True)
    failures = sum(result.failed for result in results)
    print(summary(results))
    print(f"{failures} failures in {time.perf_counter() - started:.0f} s; seed {asked.seed}")
    return 1 if failures else 0


sys.exit(main())
