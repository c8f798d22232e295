"""ziplm, gradual: pruning alternated with fine-tuning, against one-shot pruning and smaller models.

    python bench/gradual.py modes --data FOLDER     # MiniLM on MRPC and SST-2: finetune, gradual, kept layers
    python bench/gradual.py settings --data FOLDER  # learning rates, and weights of labels and hidden states
    python bench/gradual.py sst2 --data FOLDER      # MiniLM on SST-2, 2x to 6x: against one-shot pruning
    python bench/gradual.py distill --data FOLDER   # with and without token distillation, at 3x, three seeds
    python bench/gradual.py gpt2 --data FOLDER      # GPT2 on WikiText-2: against fewer layers, at equal speed
    python bench/gradual.py gpt2 --data FOLDER --report   # only prints the results so far

The dense models (minilm-sst2, minilm-mrpc, gpt2-wikitext2) and FOLDER are those of bench/models.py. Each
experiment takes one to two hours on one core, and resumes if interrupted; all of `modes` takes longer, and
its options select rows. Results are kept under build/gradual.
"""

import argparse
from pathlib import Path

import gradual_distill
import gradual_gpt2
import gradual_modes
import gradual_settings
import gradual_sst2
from harness import announce

STEPS = {
    "modes": [200, 600],
    "settings": [200],
    "sst2": [600],
    "distill": [500],
    "gpt2": [1200],
}  # for each target
SEEDS = {"modes": [0, 1], "settings": [0], "sst2": [0], "distill": [0, 1, 2]}


def main() -> None:
    """Run what is missing, then print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=list(STEPS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the published datasets")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        help=f"steps of fine-tuning for each target, several for modes; default: {STEPS}",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help=f"seeds; default: {SEEDS}")
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "sst2"], help="tasks of modes and settings")
    parser.add_argument(
        "--targets", type=float, nargs="+", default=[2.0, 3.0, 6.0], help="speedups of modes and settings"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(gradual_modes.METHODS),
        choices=gradual_modes.METHODS,
        help="rows of modes, and models of gpt2 (all)",
    )
    settings = parser.add_argument_group("settings")
    for name, values in (("labels", [0.0, 0.2, 1.0]), ("rates", [2.6e-4, 1.3e-4, 3.3e-5]), ("tokens", [0.5])):
        settings.add_argument(f"--{name}", type=float, nargs="+", default=values, help=f"default: {values}")
    parser.add_argument("--report", action="store_true", help="print the results so far, run nothing")
    options = parser.parse_args()
    announce(f"ziplm, gradual: {options.experiment}", "ziplm", "torch", "transformers")
    steps = options.steps or STEPS[options.experiment]
    seeds = options.seeds or SEEDS.get(options.experiment, [])
    if options.experiment == "modes":
        if not options.report:
            chosen = options.tasks, options.methods, options.targets, steps, seeds
            gradual_modes.run(options.data, *chosen)
        gradual_modes.report()
    elif options.experiment == "settings":
        if not options.report:
            weights = options.labels, options.rates, options.tokens
            gradual_settings.run(options.data, options.tasks, options.targets, steps, seeds, *weights)
        gradual_settings.report()
    elif options.experiment == "sst2":
        if not options.report:
            gradual_sst2.run(options.data, steps[0], seeds)
        gradual_sst2.report()
    elif options.experiment == "distill":
        if not options.report:
            gradual_distill.run(options.data, steps[0], seeds)
        gradual_distill.report()
    else:
        if not options.report:
            gradual_gpt2.run(options.data, steps[0], options.methods)
        gradual_gpt2.report()


if __name__ == "__main__":
    main()
