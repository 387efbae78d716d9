"""Use case `translate`: an old command in today's flags. Needs no vLLM; flags that were read of one are made use of."""

from __future__ import annotations

from optimizer.config.translation import translate_command
from optimizer.core.errors import HostError
from optimizer.engine.vllm.catalogue import FlagCatalogue
from optimizer.engine.vllm.catalogue_cache import cached_catalogue
from optimizer.engine.vllm.installation import find_vllm
from optimizer.report.secrets import hide_argument_secrets, hide_secrets, is_secret_name
from optimizer.report.translate_view import ChangeView, TranslationView, command_text

_BUILT_IN = "the flags of vLLM 0.26 to 0.33"


def translate(text: str, engine_python: str | None) -> TranslationView:
    """Rewrite a command.

    Args:
        text: As it is pasted.
        engine_python: The Python that has the vLLM which the command is for; None for ours, if it has one.

    Raises:
        InputError: It is no command that serves.
        HostError: The Python that was named has no vLLM.
    """
    catalogue = _catalogue(engine_python)
    found = translate_command(text, catalogue)
    env = {name: "***" if is_secret_name(name) else value for name, value in found.env.items()}
    argv = hide_argument_secrets(found.words)
    return TranslationView(
        ok=all(change.outcome != "unknown" for change in found.changes),
        command=command_text(env, argv),
        argv=argv,
        env=env,
        changes=[
            ChangeView(flag=hide_secrets(c.given), outcome=c.outcome, today=hide_secrets(c.today), why=c.why)
            for c in found.changes
        ],
        kept=found.kept,
        known_from=_BUILT_IN if catalogue is None else f"the flags of vLLM {catalogue.version}",
    )


def _catalogue(engine_python: str | None) -> FlagCatalogue | None:
    try:
        return cached_catalogue(find_vllm(engine_python))
    except HostError:
        if engine_python is not None:
            raise
        return None
