"""``ziplm push``: upload a member to the Hugging Face Hub."""

from pathlib import Path

import rich_click as click


@click.command(epilog="Example: ziplm push runs/sst2/2x you/bert-sst2-2x --dry-run")
@click.argument("member", type=Path)
@click.argument("repository", metavar="REPOSITORY")
@click.option(
    "--private/--public", default=True, show_default=True, help="Who can see a repository that is created."
)
@click.option("--dry-run", is_flag=True, help="List what would be uploaded, and stop.")
def push(member: Path, repository: str, private: bool, dry_run: bool) -> None:
    """Upload MEMBER, the folder of one target, to REPOSITORY on the Hugging Face Hub.

    All files of the folder that are not hidden are uploaded. README.md is the model card, which you may edit
    before; metrics.json names the command that made the model, with its paths. A repository that does not
    exist is created. Log in with `hf auth login` first.
    """
    from ziplm.results.publishing import check_name, files_of, push_member
    from ziplm.results.texts import bytes_text

    if dry_run:
        files = files_of(member)
        check_name(repository)
        for file in files:
            click.echo(f"{file.as_posix()}  {bytes_text((member / file).stat().st_size)}")
        total = bytes_text(sum((member / file).stat().st_size for file in files))
        who = "private" if private else "public"
        click.echo(f"would upload {len(files)} files, {total}, to {repository} ({who} if it is new)")
        return
    click.echo(push_member(member, repository, private=private))
