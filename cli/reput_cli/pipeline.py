"""`reput pipeline NAME ...`: run a Spark job."""

from __future__ import annotations

import click

from reput_cli.examples import epilog


class _Jobs(click.Group):
    """One command for each job; the job parses its own arguments."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from reput_pipeline.jobs import JOBS

        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from reput_pipeline.jobs import JOBS

        if cmd_name not in JOBS:
            return None

        @click.command(
            cmd_name,
            help=JOBS[cmd_name],
            epilog=epilog(f"pipeline {cmd_name}"),
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
            add_help_option=False,
        )
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def start(arguments: tuple[str, ...]) -> int:
            from reput_pipeline.jobs.run import run_job

            return run_job(cmd_name, arguments)

        return start


@click.group(cls=_Jobs)
def command() -> None:
    """Run a Spark job; `reput pipeline NAME --help` lists its options.

    The last line of output is a JSON object. Jobs need Spark: pip install ./client '.[spark]' in Reput's source.
    """
