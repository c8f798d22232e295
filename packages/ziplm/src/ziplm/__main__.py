"""``python -m ziplm``."""

from ziplm.cli import main

main(prog_name="ziplm")
