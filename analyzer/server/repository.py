"""The model repository of a running server: what is loaded, and how that changes.

States and messages are those of Triton's ``model_repository_manager``. A new copy is built while
the old one serves; a load that fails leaves the old one serving.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from analyzer.engine.ensemble_steps import NEWEST, member_names
from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.loader import LoadSettings, chosen_versions, load_versions, read_model_config
from analyzer.errors import AnalyzerError, RepositoryError, TargetCrashError, UsageError
from analyzer.modelconfig.repository import (
    check_model_name,
    folder_state,
    list_models,
    list_versions,
)
from analyzer.server.dependencies import dependents, members_first
from analyzer.server.overrides import unpack_override
from analyzer.server.slots import LOADING, READY, IndexEntry, Slot

ControlMode = Literal["none", "poll", "explicit"]


_POLL_FAILED = "failed to load '{}', failed to poll from model repository"


class Repository:
    """Models by name and version. Thread-safe; loads happen one at a time.

    Args:
        root: The repository's folder.
        mode: Triton's model control mode.
        settings: What applies to every load.
        poll_interval_s: Between two looks at the folder in the mode ``poll``.
        log: Takes a line about a load or unload.
    """

    def __init__(
        self,
        root: Path,
        *,
        mode: ControlMode = "none",
        settings: LoadSettings | None = None,
        poll_interval_s: float = 15.0,
        log: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self._root = root
        self.mode = mode
        self._settings = replace(settings or LoadSettings(), on_failure=self._note_failure)
        self._lost = ""
        self._poll_interval_s = poll_interval_s
        self._log = log
        self._loading = threading.RLock()
        self._slots: dict[str, Slot] = {}
        self._changing = threading.Lock()  # of states: never held while something is loaded
        self._started = False
        # Replaced, never changed, so that readers need no lock; the newest version is under "".
        self._ready: Mapping[tuple[str, str], LoadedModel] = {}
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self._closers: dict[threading.Thread, Slot] = {}

    def start(self, load_models: tuple[str, ...] = ()) -> list[str]:
        """Loads what the mode asks for; returns a line for each model that failed.

        Args:
            load_models: Names to load in the mode ``explicit``; ``*`` alone is all of them.

        Raises:
            RepositoryError: The folder cannot be read, or there is no model of such a name.
            UsageError: ``load_models`` in another mode, or ``*`` beside other names.
        """
        names = list_models(self._root)
        if load_models and self.mode != "explicit":
            raise UsageError(
                "--load-model needs --model-control-mode=explicit.",
                hint="The other modes load every model of the repository.",
            )
        if "*" in load_models and len(load_models) > 1:
            raise UsageError("--load-model=* stands alone.", hint="Leave the other names out.")
        if self.mode == "explicit" and load_models != ("*",):
            names = [check_model_name(name) for name in dict.fromkeys(load_models)]
        failures = []
        for name in self._by_dependency(names):
            try:
                self._load(name)
            except AnalyzerError as error:
                failures.append(f"{name}: {error.message}")
        if self.mode == "poll":
            self._poller = threading.Thread(target=self._poll, name="repository-poll", daemon=True)
            self._poller.start()
        self._started = True
        return failures

    def get(self, name: str, version: str = "") -> LoadedModel:
        """A model that is ready; without a version the newest.

        Raises:
            Fault: There is none.
        """
        model = self._ready.get((name, version))
        if model is not None:
            return model
        raise self._unknown(name, version)

    def ready(self, name: str, version: str = "") -> bool:
        """Whether that model answers."""
        return (name, version) in self._ready and self.live()

    def live(self) -> bool:
        """False once the process has lost its GPU: only another process can use it again."""
        return not self._lost

    def server_ready(self) -> bool:
        """Triton's strict readiness: every model that is known is ready or was unloaded."""
        # Without the lock, which a load holds to its end: event loops ask this.
        return self.live() and all(slot.well() for slot in tuple(self._slots.values()))

    def models(self) -> list[LoadedModel]:
        """Every version that is ready, by name and version."""
        found = {id(model): model for model in self._ready.values()}
        return sorted(found.values(), key=lambda model: (model.name, model.version))

    def versions(self, name: str) -> list[str]:
        """Ready versions of a model, ascending."""
        return [str(v) for v in sorted(m.version for m in self.models() if m.name == name)]

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """Every model of the folder with its states; as in Triton none that has no folder.

        But where a lost device made every model unready: each is told with the reason.
        """
        try:
            names = list_models(self._root)
        except RepositoryError:
            names = sorted(self._slots)  # the folder went away: what is loaded is still listed
        if self._lost:
            names = sorted({*names, *self._slots})
        return [
            entry
            for name in names
            for entry in self._slots.get(name, Slot()).entries(name, self._lost)
            if entry.state == "READY" or not ready_only
        ]

    def load(
        self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Loads or reloads a model on a client's behalf.

        Args:
            config_json: The configuration in JSON, instead of ``config.pbtxt``.
            files: Contents by ``<version>/<file>``, instead of the model's whole folder.

        Raises:
            Fault: The mode forbids it, or the load failed.
        """
        self._require_control()
        try:
            check_model_name(name)
        except RepositoryError as error:
            raise Fault("invalid", error.message) from error
        if files and config_json is None:
            raise Fault(
                "internal",
                f"{_POLL_FAILED.format(name)}: load with file override must have 'config' "
                "parameter specified",
            )
        try:
            self._load(name, config_json=config_json, files=files)
        except Fault:
            raise
        except AnalyzerError as error:
            raise Fault("invalid", error.message) from error

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unloads a model, and ensembles that need it; requests taken before are still answered.

        Such an ensemble is loaded again with the model, unless it is unloaded by its own name.

        Raises:
            Fault: The mode forbids it.
        """
        self._require_control()
        with self._loading:
            slot = self._slots.get(name)
            if slot is None:
                return
            slot.awaited = ()
            members = slot.members if unload_dependents else ()
            self._retire(name)
        for member in members:
            self.unload(member, unload_dependents=True)

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Unloads everything; every request taken before is answered.

        Args:
            timeout_s: For requests that are queued or run, also of models that were unloaded
                before. What is queued longer is answered as unavailable; an execution that takes
                longer is left behind.
        """
        self._stop.set()
        if self._poller is not None:
            self._poller.join()
        with self._loading:
            for name in sorted(self._slots):
                self._retire(name)
        end_s = time.monotonic() + timeout_s
        for thread in tuple(self._closers):
            thread.join(max(end_s - time.monotonic(), 0.0))
        for slot in tuple(self._closers.values()):
            for model in slot.versions.values():
                model.close(timeout_s=0.0)

    def _note_failure(self, failure: Exception) -> None:
        if isinstance(failure, TargetCrashError) and not self._lost:
            self._lost = failure.message
            self._log(f"not live any more: {failure.message} {failure.hint}")

    def _require_control(self) -> None:
        if self.mode == "explicit":
            return
        raise Fault(
            "unavailable", "explicit model load / unload is not allowed if polling is enabled"
        )

    def _unknown(self, name: str, version: str) -> Fault:
        slot = self._slots.get(name)
        prefix = "Request for unknown model: "
        if slot is None or not slot.states:
            return Fault("not_found", f"{prefix}'{name}' is not found")
        if not version:
            return Fault("not_found", f"{prefix}'{name}' has no available versions")
        if version.isdecimal() and int(version) in slot.states:
            return Fault("unavailable", f"{prefix}'{name}' version {version} is not at ready state")
        return Fault("not_found", f"{prefix}'{name}' version {version} is not found")

    def _by_dependency(self, names: list[str]) -> list[str]:
        """Ensembles after all others; among ensembles, members first."""
        members: dict[str, tuple[str, ...]] = {}
        for name in names:
            with contextlib.suppress(AnalyzerError, OSError):
                config = read_model_config(self._root / name, name, self._settings, None)
                members[name] = member_names(config)
        return members_first(names, members)

    def _load(
        self,
        name: str,
        *,
        config_json: str | None = None,
        files: Mapping[str, bytes] | None = None,
        above: tuple[str, ...] = (),
    ) -> None:
        """Builds the new copy and puts it in the place of the old one.

        Raises:
            AnalyzerError: It cannot be built; whatever served before still does.
        """
        with self._loading:
            slot = self._slots.get(name)
            folder = self._root / name
            override: tempfile.TemporaryDirectory[str] | None = None
            polled = False
            try:
                if not folder.is_dir() and not files:
                    raise Fault("internal", _POLL_FAILED.format(name))
                found = folder_state(folder) if not files else None
                if slot is not None and slot.versions and found is not None:
                    # Without a configuration of its own, a load keeps the last one's, as in Triton.
                    same = config_json in (None, slot.config_json)
                    if same and slot.folder == found:
                        self._load_members(name, slot.members, above)
                        return
                config, override = self._read(name, folder, config_json, files or {})
                polled = True
                source = Path(override.name) / name if override is not None else folder
                self._load_members(name, member_names(config), above)
                self._log(f"loading: {name}")
                if slot is None or not slot.versions:
                    states = dict.fromkeys(chosen_versions(source, config), LOADING)
                    self._put(name, Slot(states=states))
                versions = load_versions(source, config, self._settings, self._resolve)
            except Exception as error:
                if override is not None:
                    override.cleanup()
                message = error.message if isinstance(error, AnalyzerError) else str(error)
                self._log(f"failed to load '{name}': {message}")
                # Triton tells nothing of a model that it could not poll. At the start it would end.
                if polled or not self._started:
                    self._failed(name, slot, message)
                if isinstance(error, AnalyzerError):
                    raise
                raise RepositoryError(f"failed to load '{name}': {message}") from error
            new = Slot(
                versions=versions,
                states=dict.fromkeys(versions, READY),
                members=member_names(config),
                folder=found,
                config_json=config_json,
                override=override,
            )
            self._log(f"successfully loaded '{name}'")
            self._put(name, new)
            self._publish()
            if self._settings.cache is not None:
                self._settings.cache.forget()
            if slot is not None:
                self._close_later(name, slot)
            self._load_awaiting(name)

    def _put(self, name: str, slot: Slot) -> None:
        with self._changing:
            if name in self._slots:
                slot.follow(self._slots[name])
            self._slots[name] = slot

    def _read(
        self, name: str, folder: Path, config_json: str | None, files: Mapping[str, bytes]
    ) -> tuple[Any, tempfile.TemporaryDirectory[str] | None]:
        """The configuration, and the folder that stands for the model's own if files override it.

        Raises:
            Fault: Internal, as in Triton where the error comes up before the load proper.
        """
        override = None
        try:
            own, override = unpack_override(name, folder, config_json, files)
            source = Path(override.name) / name if override is not None else folder
            return read_model_config(source, name, self._settings, own), override
        except AnalyzerError as error:
            if override is not None:
                override.cleanup()
            raise Fault("internal", f"{_POLL_FAILED.format(name)}: {error.message}") from error

    def _load_members(self, name: str, members: tuple[str, ...], above: tuple[str, ...]) -> None:
        absent = [
            member
            for member in members
            if not self.ready(member) and not (self._root / check_model_name(member)).is_dir()
        ]
        if absent:
            raise RepositoryError(
                f"ensemble {name} contains models that are not available or ambiguous: "
                f"{', '.join(absent)}"
            )
        for member in members:
            if member == name or member in above:
                raise RepositoryError(f"ensemble '{name}' contains itself.")
            loaded = self._slots.get(member)
            # One whose folder changed is loaded anew, as in Triton.
            of_folder = loaded is not None and loaded.folder is not None
            if not self.ready(member) or (of_folder and (self._root / member).is_dir()):
                self._load(member, above=(*above, name))

    def _resolve(self, name: str, version: int) -> LoadedModel:
        return self.get(name, "" if version == NEWEST else str(version))

    def _failed(self, name: str, slot: Slot | None, message: str) -> None:
        if slot is not None and slot.versions:
            return  # the old copy still serves
        version = 0
        folder = self._root / name
        if folder.is_dir():
            version = max(list_versions(folder), default=0)
            self._put(name, Slot(states={version: ("UNAVAILABLE", message)}))
            return
        with self._changing:  # what was sent without a folder leaves nothing behind
            if slot is None:
                self._slots.pop(name, None)
            else:
                self._slots[name] = slot

    def _load_awaiting(self, name: str) -> None:
        """Loads the ensembles that wait for ``name`` and miss no other member."""
        for own, slot in sorted(self._slots.items()):
            if name in slot.awaited and all(self.ready(member) for member in slot.awaited):
                with contextlib.suppress(AnalyzerError):  # logged, and in the index
                    self._load(own)

    def _retire(self, name: str) -> None:
        """Unloads a model and, before it, the ensembles that need it; these wait for it."""
        members = {own: slot.members for own, slot in self._slots.items()}
        for own in [*reversed(dependents(name, members)), name]:
            slot = self._slots[own]
            if not slot.versions:
                continue
            self._put(own, Slot(awaited=members[own] if own != name else ()))
            self._publish()
            self._log(f"unloading: {own}")
            self._close_later(own, slot)

    def _publish(self) -> None:
        ready: dict[tuple[str, str], LoadedModel] = {}
        for name, slot in self._slots.items():
            for version, model in sorted(slot.versions.items()):
                ready[name, str(version)] = model
                ready[name, ""] = model  # the newest, since versions ascend
        self._ready = ready

    def _close_later(self, name: str, slot: Slot) -> None:
        """Ends the old copy on a thread of its own: its last requests take as long as they do."""

        def close() -> None:
            for model in slot.versions.values():
                model.close()
            if slot.override is not None:
                slot.override.cleanup()
            with self._changing:
                self._slots[name].note_unloaded(slot.versions)
            self._log(f"successfully unloaded '{name}'")
            del self._closers[threading.current_thread()]

        thread = threading.Thread(target=close, name=f"unload-{name}", daemon=True)
        self._closers[thread] = slot
        thread.start()

    def _poll(self) -> None:
        while not self._stop.wait(self._poll_interval_s):
            try:
                names = list_models(self._root)
            except RepositoryError as error:
                self._log(error.message)
                continue
            with self._loading:
                for name in set(self._slots) - set(names):
                    self._retire(name)
            for name in self._by_dependency(names):
                try:
                    self._load(name)
                except AnalyzerError:
                    continue  # logged, and in the index
