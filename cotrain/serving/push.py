"""``cotrain push``: what ``cotrain export`` writes, as a repository of the Hugging Face Hub.

The export goes to a temporary directory and from there to the Hub in one commit; nothing else of the run is sent. Left
out: branches, pull requests and data sets (``hf upload`` does these with any exported directory).
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, Protocol

from huggingface_hub import HfApi, get_token

from cotrain.core.errors import ConfigError
from cotrain.runs.directory import RunDirectory
from cotrain.serving.export import export_policy
from cotrain.storage.io_progress import Say


class Hub(Protocol):
    """The part of ``HfApi`` that a push needs."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any: ...

    def repo_info(self, repo_id: str) -> Any: ...

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any: ...


def push_policy(
    directory: Path | str,
    role: str,
    repo: str,
    *,
    private: bool = False,
    hub: Hub | None = None,
    say: Say = lambda text: None,
) -> str:
    """Upload the policy that plays ``role`` to the model repository ``repo``; returns its address. ``say``: as of
    ``export``.

    Raises ConfigError when there is no token, the Hub refuses or cannot be reached, or ``private`` is asked for a
    repository that is already public; and what ``export`` raises. Nothing is created on the Hub before the export
    is.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo, re.ASCII):
        raise ConfigError(f"--repo {repo!r}: expected owner/name, as in my-name/my-verifier", code="E_REPO_NAME")
    run = RunDirectory.open(directory)
    if hub is None:
        if get_token() is None:
            raise ConfigError(
                "no token of the Hugging Face Hub: log in with `hf auth login`, or set HF_TOKEN "
                "(a token with write access, from https://huggingface.co/settings/tokens)",
                code="E_HUB_TOKEN_MISSING",
            )
        hub = HfApi()
    with tempfile.TemporaryDirectory(prefix="cotrain-push-") as folder:
        exported = export_policy(run.path, role, Path(folder) / "model", say=say)
        try:
            hub.create_repo(repo, private=private, exist_ok=True)
            if private and not hub.repo_info(repo).private:
                raise ConfigError(
                    f"--repo {repo} exists and is public; nothing was sent. Leave out --private, or rename",
                    code="E_REPO_IS_PUBLIC",
                )
            hub.upload_folder(repo_id=repo, folder_path=exported, commit_message=f"{role} of a cotrain run")
        except ConfigError:
            raise
        except Exception as error:  # the client raises its own errors, and those of whichever HTTP library it uses
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"the Hub did not take {repo}: {first:.200}; check name, token and network", code="E_HUB_REFUSED"
            ) from error
    return f"https://huggingface.co/{repo}"
