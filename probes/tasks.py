"""The harness's tasks: those that come with lm-eval, and those of a folder of one's own."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.errors import BadRequest, KvtuiError

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

BOOTSTRAPS = 1000  # for the standard error of what has none in closed form


def check_harness() -> None:
    """Raises BadRequest where lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise BadRequest("the study needs lm-eval: pip install 'kvtui[eval]'")


def find(names: list[str], folder: Path | None) -> TaskManager:
    """The harness's index of the tasks (or groups of tasks) of those names. Those of `folder` come first. Raises
    BadRequest for a name that there is none of."""
    _be_quiet()
    from lm_eval import tasks
    from lm_eval.tasks import TaskManager

    if folder is not None:
        own = TaskManager(include_path=folder, include_defaults=False)
        if set(names) <= set(own.all_tasks):
            return own
    rooms = _mentioning(names, Path(tasks.__file__).parent)
    some = TaskManager(include_path=[*rooms, *([folder] if folder else [])], include_defaults=False)
    if all(_is_whole(some, name) for name in names):
        return some
    every = TaskManager(include_path=folder)
    for name in names:
        if name not in every.all_tasks:
            near = difflib.get_close_matches(name, every.all_tasks, n=3)
            raise BadRequest(f"no task is called {name!r}" + (f"; near it are {', '.join(near)}" if near else ""))
    return every


def load(manager: TaskManager, names: list[str], folder: Path | None) -> dict[str, Any]:
    """By name what lm-eval's evaluator takes, with the items read: from the network, if that is where they are. Paths
    in the tasks of `folder` are relative to it. Raises KvtuiError when they cannot be had, and BadRequest for tasks
    that would run what a model writes, or show it pictures."""
    import datasets

    datasets.disable_progress_bars()
    found = {}
    for name in names:
        try:
            with contextlib.chdir(folder) if folder else contextlib.nullcontext():
                found[name] = manager.load([name])
        except Exception as fault:  # tasks are configuration and code of others'
            line = " ".join((str(fault) or type(fault).__name__).split())
            where = "; it is on the network, --task-dir has tasks without" if isinstance(fault, ConnectionError) else ""
            raise KvtuiError(f"the items of task {name!r} cannot be read: {line[:300]}{where}") from fault
        for task in found[name]["tasks"].values():
            if getattr(task, "UNSAFE_CODE", False):
                raise BadRequest(f"task {name!r} runs code that the model writes; kvtui does not")
            if getattr(task, "MULTIMODAL", False):
                raise BadRequest(f"task {name!r} is about more than text")
    return found


def evaluate(
    lm: LM, loaded: dict[str, Any], limit: int | None, num_fewshot: int | None, chat_template: bool, seed: int
) -> dict[str, Any]:
    """lm-eval's results for one name of `load`. Every model is shown the same examples: they are drawn by `seed`. A
    task that says itself that it has none is left so."""
    from lm_eval.evaluator import evaluate

    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        task.set_config("num_fewshot", own or 0 if num_fewshot is None or own == 0 else num_fewshot)
        task.set_fewshot_seed(seed)
    found = evaluate(
        lm,
        loaded,
        limit=limit,
        bootstrap_iters=BOOTSTRAPS,
        apply_chat_template=chat_template,
        fewshot_as_multiturn=chat_template,
    )
    assert found is not None, "lm-eval gives nothing to any but the first of several processes"
    return dict(found)


def _mentioning(names: list[str], shipped: Path) -> list[Path]:
    """The folders of lm-eval's in which one of the names is written. All its fourteen thousand files take half a minute
    to parse, and a second to search."""
    name = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    rooms = set()
    for path in shipped.rglob("*yaml"):
        room = shipped / path.relative_to(shipped).parts[0]
        if room not in rooms and path.is_file() and name.search(path.read_text("utf-8", "replace")):
            rooms.add(room)
    return sorted(rooms)


def _is_whole(manager: TaskManager, name: str) -> bool:
    """Whether the index has the task; of a group, all that is in it."""
    entry = manager.task_index.get(name)
    if entry is None:
        return False
    inner = (entry.cfg or {}).get("task") if name in manager.all_groups else None
    return all(_is_whole(manager, one) for one in inner or () if isinstance(one, str))


def _be_quiet() -> None:
    """Its bars and its notes would be written over the study's own progress."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    for library in ("lm_eval", "huggingface_hub", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
