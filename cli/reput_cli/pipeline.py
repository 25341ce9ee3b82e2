"""`reput pipeline NAME ...`: run a Spark job."""

from __future__ import annotations

from difflib import get_close_matches

import click


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
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
            add_help_option=False,
        )
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def start(arguments: tuple[str, ...]) -> int:
            from reput_pipeline.jobs.command_line import run_job

            return run_job(cmd_name, arguments)

        return start

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the job; an unknown name is refused with the nearest known one."""
        jobs = self.list_commands(ctx)
        near = [] if args[0] in jobs else get_close_matches(args[0], jobs, n=1)
        if near:
            ctx.fail(f"No such job {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


@click.group(cls=_Jobs)
def command() -> None:
    """Run a Spark job; `reput pipeline NAME --help` lists its options.

    The last line of output is a JSON object. Jobs need Spark: pip install ./client '.[spark]' in Reput's source.
    """
