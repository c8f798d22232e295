"""The layout of the code: short chains of imports, few modules at the top, and short files."""

from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGES = Path(__file__).parents[2]
LONGEST_CHAIN = 16  # imports, so at most 17 modules: a command, api, pipelines, stages, tasks, …, errors
MODULES_AT_THE_TOP = 8
LINES = 300


def longest_chain(imports: Mapping[str, Set[str]]) -> tuple[str, ...]:
    """Return the longest chain in which each module imports the next; raise CycleError for a cycle."""
    chains: dict[str, tuple[str, ...]] = {}
    for module in TopologicalSorter(imports).static_order():  # what is imported comes first
        below = max((chains[imported] for imported in sorted(imports[module])), key=len, default=())
        chains[module] = (module, *below)
    return max(chains.values(), key=len)


def test_the_longest_chain_of_a_known_graph() -> None:
    imports = {"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}
    assert longest_chain(imports) == ("a", "b", "c", "d")
    with pytest.raises(CycleError):
        longest_chain({**imports, "d": {"a"}})


def test_imports_have_no_cycle_and_chains_of_them_are_short() -> None:
    graph = grimp.build_graph("ziplm", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert imports["ziplm.api"]  # control: the graph is not empty
    chain = longest_chain(imports)
    imports_in_chain = len(chain) - 1
    assert imports_in_chain <= LONGEST_CHAIN, " -> ".join(chain)


def test_few_modules_stand_at_the_top_of_the_package() -> None:
    top = {path.stem for path in (PACKAGES / "ziplm" / "src" / "ziplm").glob("*.py")}
    assert {"__init__", "__main__"} < top
    assert len(top - {"__init__", "__main__"}) <= MODULES_AT_THE_TOP, sorted(top)


def test_no_file_is_too_long() -> None:
    files = [path for kind in ("src", "tests") for path in PACKAGES.glob(f"*/{kind}/**/*.py")]
    assert len({path.relative_to(PACKAGES).parts[0] for path in files}) == 5
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    too_long = {str(path.relative_to(PACKAGES)): lines for path, lines in lengths.items() if lines > LINES}
    assert not too_long
